"""Copy the state of a run: what is trained and what changes each time, what is constant once.

    snapshots = Snapshots(model, optimizers)
    snapshots.whole()               # every parameter and buffer, and the optimisers' tensors
    snapshots.changed()             # the same, without what has not changed since the last one: a frozen base, masks

A tied tensor goes by its first name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.kinds.names import named_buffers, named_parameters
from dualform.store import Column

_STORED = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
State = dict[str, Column]  # named as docs/internals/format.md says


class Snapshots:
    """Copies a model and its optimisers, and remembers what was constant."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], carried: Callable[[], State] = dict) -> None:
        self._model, self._optimizers, self._carried = model, optimizers, carried
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        self._stepped = {id(parameter) for group in groups for parameter in group["params"] if parameter.requires_grad}
        self._digests: dict[str, bytes] = {}  # of what is constant, in the last snapshot that was handed over
        self._latest: dict[str, bytes] = {}

    def trained(self, state: State) -> State:
        """Return what of a snapshot will be in every other one too."""
        constant = {name for name, _ in self._constant()}
        return {name: column for name, column in state.items() if name not in constant}

    def whole(self) -> State:
        """Copy everything."""
        self._digests = {name: _digest(tensor) for name, tensor in self._constant()}
        return {name: as_column(tensor) for name, tensor in self._all()} | self._carried()

    def changed(self) -> State:
        """Copy what is trained, and of the rest what is not as it was in the last snapshot that was handed over."""
        self._latest = {name: _digest(tensor) for name, tensor in self._constant()}
        same = {name for name, digest in self._latest.items() if self._digests.get(name) == digest}
        return {name: as_column(tensor) for name, tensor in self._all() if name not in same} | self._carried()

    def handed_over(self) -> None:
        """Take note that the latest snapshot is the writer's: an interrupt may come before that."""
        self._digests = self._latest

    def resume(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        """Take the buffers of a run for the last ones, where it goes on: a model may be restored with other ones."""
        self._digests |= {f"buffers/{name}": _digest_of(array) for name, array in buffers.items()}

    def _constant(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what no optimiser steps, which may change all the same: the running means of a BatchNorm do."""
        for name, parameter in named_parameters(self._model):
            if id(parameter) not in self._stepped and is_storable(parameter):
                yield f"parameters/{name}", parameter
        yield from self._buffers()

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in named_buffers(self._model):
            if is_storable(buffer):
                yield f"buffers/{name}", buffer

    def _all(self) -> Iterator[tuple[str, Tensor]]:
        names: dict[int, str] = {}
        for name, parameter in named_parameters(self._model):
            names[id(parameter)] = name
            if is_storable(parameter):
                yield f"parameters/{name}", parameter
        yield from self._buffers()
        for index, optimizer in enumerate(self._optimizers):
            for stepped, state in optimizer.state.items():
                for entry, value in state.items() if id(stepped) in names and isinstance(state, dict) else ():
                    if isinstance(value, (Tensor, int, float)) and is_storable(tensor := _dense(value)):
                        yield f"optimizers/{index}/{names[id(stepped)]}/{entry}", tensor


def _dense(value: Tensor | float) -> Tensor:
    """Return an entry of an optimiser's state as a tensor; the momentum of sparse gradients is sparse."""
    tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    return tensor.to_dense() if tensor.layout == torch.sparse_coo else tensor


def is_storable(tensor: Tensor) -> bool:
    """Return whether a snapshot can hold a tensor; others, such as sparse ones, are left out."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta) and tensor.dtype in _STORED


def left_out(model: nn.Module) -> list[str]:
    """Return the names of what no snapshot can hold."""
    named = [*named_parameters(model), *named_buffers(model)]
    return [name for name, tensor in named if not is_storable(tensor)]


def as_column(tensor: Tensor) -> Column:
    """Copy a tensor to memory of its own, as the store takes it."""
    copy = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return Column([_array(copy)], "bfloat16" if copy.dtype == torch.bfloat16 else None)


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else np.asarray(tensor)


def _digest(tensor: Tensor) -> bytes:
    return _digest_of(_array(tensor.detach().cpu().contiguous()))


def _digest_of(array: NDArray[Any]) -> bytes:
    return blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=16).digest()
