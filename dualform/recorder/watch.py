"""How each kind of layer is watched: its keys on the way forward, the errors at its output on the way back.

    handle = watch(module, layer, on_keys, lasting=True)    # on_keys(keys, precision, followed) may return on_errors

A Linear and an Embedding are watched by a forward hook, and their output tensor by a hook of its own: key
and error are paired by the closure, so in-place activations, repeated calls and checkpointing all pair up.
An LSTM has taps, since its gates are no tensor that anyone outside would see.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.nn import LSTM
from dualform.store import Layer

OnErrors = Callable[[Tensor], None]
# keys (..., d_in), of an embedding the indices (...); the precision they are multiplied in; whether errors may follow
OnKeys = Callable[[Tensor, torch.dtype, bool], OnErrors | None]


def watched_module(modules: Mapping[str, nn.Module], layer: Layer) -> nn.Module | None:
    """The module a layer belongs to, among those of a model by name; an LSTM has several layers."""
    return modules.get(layer.name.rpartition(".")[0] if layer.kind == "LSTM" else layer.name)


def watch(module: nn.Module, layer: Layer, on_keys: OnKeys, *, lasting: bool) -> RemovableHandle:
    """Call `on_keys` in every forward pass, and what it returns in the backward pass that follows.

    What lasts may live to see the model compiled.
    """
    if isinstance(module, LSTM):
        number = int(layer.name.rpartition(".")[2].removeprefix("l"))
        return module.tap(number, lambda keys: on_keys(keys, keys.dtype, True))  # errors that never come do no harm

    def on_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if not output.numel():
            return
        on_errors = on_keys(args[0] if args else kwargs["input"], output.dtype, output.requires_grad)
        if on_errors is not None and output.requires_grad:
            output.register_hook(on_errors)

    hook: Callable[..., None] = on_forward
    if lasting or "torch._dynamo" in sys.modules:  # to import the compiler for nothing would take seconds
        hook = torch.compiler.disable(on_forward)  # then it is run as plain Python, between two graphs
    return module.register_forward_hook(hook, with_kwargs=True)
