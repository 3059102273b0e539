"""Call a module once more, and note what goes through its recorded layers.

    trial = attempt(Subject(model, layers, (args, kwargs)))
    trial.outputs, trial.calls["fc", 0].keys

What is made of it is up to reading.py and experiment.py.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.kinds import ModuleCall, OnErrors, OnKeys
from dualform.recorder.layers import LiveLayer
from dualform.recorder.provenance.rows import powers
from dualform.recorder.provenance.signature import Opaque, replace, tensors

Place = tuple[str, int]  # a layer, and the number of its call within the module's
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Unproven(Exception):
    """Says why nothing can be told of whose rows are."""


class BatchOfOne(Unproven):
    """There is nothing to be told apart."""


@dataclass(frozen=True)
class Subject:
    """What is experimented on: a call of a module, and the layers in it that are looked at."""

    module: nn.Module
    layers: Sequence[LiveLayer]
    arguments: Arguments


@dataclass
class LayerCall:
    """One call of a layer in a trial, and the backward passes through it."""

    leading: tuple[int, ...]
    keys: Tensor  # (rows, width)
    base: int  # errors are scaled by powers of two below this one
    errors: Tensor | None = None  # (rows, d_out), of the first pass
    digits: list[NDArray[np.int64]] = field(default_factory=list)  # how they were scaled in each further pass, (rows,)

    def add(self, errors: Tensor) -> None:
        """Take the errors of one more backward pass; only those of the first are kept."""
        if self.errors is None:
            self.errors = errors.clone()
        else:
            self.digits.append(powers(self.errors, errors, self.base - 1))


class Trial(NamedTuple):
    """A forward pass."""

    outputs: list[Tensor]
    calls: dict[Place, LayerCall]


def attempt(subject: Subject, change: Callable[[Any], Any] = lambda arguments: arguments) -> Trial:
    """Call the module with copies of its arguments, changed if asked for; raises Unproven if that cannot be done."""
    calls: dict[Place, LayerCall] = {}
    handles = []
    try:
        for layer in subject.layers:
            on_keys = _noting(layer, calls)
            handles.append(layer.kind.add_hooks(layer.module, layer.description, on_keys, lasting=False))
        copies: dict[int, Tensor] = {}  # one for what is passed twice: self-attention knows itself by that
        copied = replace(subject.arguments, lambda one: copies.setdefault(id(one), one.detach().clone()))
        args, kwargs = change(copied)
        output = subject.module(*args, **kwargs)
    except Opaque as opaque:
        raise Unproven(f"an argument of class {opaque} cannot be passed twice") from None
    except Exception as error:
        raise Unproven(f"the module could not be called again ({type(error).__name__}: {error})") from error
    finally:
        for handle in handles:
            handle.remove()
    return Trial([tensor for tensor in tensors(output) if tensor.is_floating_point()], calls)


def _noting(layer: LiveLayer, calls: dict[Place, LayerCall]) -> OnKeys:
    kind, numbers = layer.kind, Counter[str]()

    def on_keys(of_module: ModuleCall) -> OnErrors:
        keys = kind.told_apart_by(of_module)
        keys = keys if keys.is_floating_point() else keys.clone()  # what a gradient needs is not changed in place
        base = 4 if of_module.precision == torch.float16 else 16  # the range of float16 is small
        call = calls[layer.name, numbers[layer.name]] = LayerCall(kind.leading(of_module), keys, base)
        numbers[layer.name] += 1
        return lambda gradient: call.add(kind.errors(of_module, gradient))

    return on_keys
