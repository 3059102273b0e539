"""Call a user's module without leaving a trace: modes, buffers, random state and gradients are as they were.

    with untouched(model, evaluating=True):
        model(inputs)

Hooks of the user's own are called all the same.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from dualform.random_state import RANDOM


@contextmanager
def untouched(module: nn.Module, *, evaluating: bool) -> Iterator[None]:
    """Let a module be called, with gradients and uncompiled, in evaluation mode or its own; undo what that changes."""
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_random_state(module))
        stack.enter_context(_buffers(module))
        stack.enter_context(_gradients(module))
        stack.enter_context(_checkpoints())
        stack.enter_context(_autocast_cache())
        # A checkpoint around all of this counts what is saved, and must not see it
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(Tensor.detach, Tensor.detach))
        if evaluating:
            stack.enter_context(_modes(module))
        if torch.cuda.is_available():  # a recurrence of cuDNN's can only be followed back in training mode
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if "torch._dynamo" in sys.modules:  # else nothing can be compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _modes(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation, past `train`, which a module may have one of its own of."""
    training = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in training:
            part.training = False
        yield
    finally:
        for part, mode in training:
            part.training = mode


@contextmanager
def _buffers(module: nn.Module) -> Iterator[None]:
    """Let the module work on copies: the buffers themselves may be part of a graph, and must not change at all."""
    own = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    copies: dict[int, Tensor] = {id(buffer): buffer.clone() for _, _, buffer in own if buffer is not None}
    try:
        for part, name, buffer in own:
            if buffer is not None:
                part._buffers[name] = copies[id(buffer)]
        yield
    finally:
        for part, name, buffer in own:
            part._buffers[name] = buffer


@contextmanager
def _gradients(module: nn.Module) -> Iterator[None]:
    """Put gradients aside, should a module follow something back in its own forward pass."""
    own = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        for parameter, _ in own:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in own:
            parameter.grad = gradient


@contextmanager
def _random_state(module: nn.Module) -> Iterator[None]:
    devices = {parameter.device for parameter in module.parameters()} - {torch.device("cpu")}
    kind = next(iter(devices)).type if devices else "cuda"
    with RANDOM, torch.random.fork_rng([device for device in devices if device.type == kind], device_type=kind):
        python, legacy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


@contextmanager
def _autocast_cache() -> Iterator[None]:
    """Keep autocast's low-precision copies of weights apart: those of the training belong to its own graph."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


class _Direct:
    """Stands in for torch's reentrant checkpoint, which cannot be followed back by torch.autograd.grad."""

    @staticmethod
    def apply(function: Any, preserve: bool, *args: Any) -> Any:
        return function(*args)


@contextmanager
def _checkpoints() -> Iterator[None]:
    reentrant = torch.utils.checkpoint.CheckpointFunction
    torch.utils.checkpoint.CheckpointFunction = _Direct  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.utils.checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]
