"""Directions of a layer's output: given, or found as the gradient of one of the model's outputs.

At the layer that computes the model's output the gradient of output 3 is 1 at unit 3 and 0 elsewhere. Further
inside it says how much output 3 grows with each unit, to first order.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.attention.queries import call, chosen_rows, watching
from dualform.errors import QueryError
from dualform.kinds import OnErrors, kind_of
from dualform.store import Layer

Array = NDArray[Any]
# whole numbers: a class, or one for each input; floats: a direction, or one for each query; None: the predicted class
Target: TypeAlias = "int | Sequence[int] | Sequence[float] | Array | Tensor | None"


def as_direction(target: Target, queries: int, layer: Layer) -> Tensor | None:
    """A target that is a direction already, for each query; None: it is a class."""
    given = None if target is None else torch.as_tensor(target)
    if given is None or not given.is_floating_point():
        return None
    if tuple(given.shape) not in ((layer.d_out,), (queries, layer.d_out)):
        raise QueryError(
            f"a direction of the output of {layer.name!r} has shape ({layer.d_out},), or ({queries}, {layer.d_out}) "
            f"for all queries; this one has {tuple(given.shape)}"
        )
    return given.detach().cpu().expand(queries, -1)


@dataclass(frozen=True)
class Directions:
    """Towards the targets: the class that is meant for each input, and by layer a direction for each query."""

    classes: Tensor  # (inputs,)
    layers: dict[str, Tensor]  # (queries, d_out) each


def directions(
    model: nn.Module, layers: Mapping[str, Layer], inputs: Any, rows: int | slice | None, target: Target
) -> Directions:
    """The gradient of the target at each query of every layer."""
    caught: dict[str, dict[int, Tensor]] = defaultdict(dict)

    def on_keys(layer: Layer, given: Tensor, precision: torch.dtype, followed: bool) -> OnErrors:
        """Errors come last call first, and put themselves in the order of the calls; where none come they are 0."""
        leading, calls = kind_of(layer).leading(given), caught[layer.name]
        order = len(calls)
        calls[order] = chosen_rows(torch.zeros(*leading, layer.d_out), rows)

        def on_errors(gradient: Tensor) -> None:
            calls[order] = chosen_rows(gradient.reshape(*leading, layer.d_out), rows).cpu()

        return on_errors

    with watching(model, layers, on_keys) as modules:
        weights = [p for name in layers for p in modules[name].parameters(recurse=False)]
        with torch.enable_grad(), _requiring_gradients(weights):
            output = _outputs(call(model, inputs), rows)
            classes = _classes(target, output)
            wanted = output.gather(1, classes[:, None]).sum()
            torch.autograd.grad(wanted, weights, allow_unused=True)  # leaves every .grad as it is
    found = {name: torch.cat([calls[order] for order in sorted(calls)]) for name, calls in caught.items() if calls}
    return Directions(classes.cpu(), found)


@contextmanager
def _requiring_gradients(weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """A frozen layer has no errors at its output, so nothing is frozen for a while."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _outputs(returned: Any, rows: int | slice | None) -> Tensor:
    """(inputs, classes), of whatever a model returns."""
    found = getattr(returned, "logits", returned)
    if isinstance(found, Mapping):
        found = found.get("logits", found)
    if isinstance(found, Sequence) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise QueryError(f"a target needs a model that returns a tensor of outputs, not {type(found).__name__}")
    if found.dim() > 2 and not isinstance(rows, int):
        raise QueryError(
            f"the model has outputs of shape {tuple(found.shape)}: say whose target it is, such as rows=-1 for the last"
        )
    if found.dim() < 2:
        raise QueryError(f"a target needs outputs of shape (inputs, classes), not {tuple(found.shape)}")
    return found[:, rows] if found.dim() > 2 else found


def _classes(target: Target, output: Tensor) -> Tensor:
    """(inputs,)"""
    inputs, classes = output.shape
    found = output.argmax(dim=1) if target is None else torch.as_tensor(target, device=output.device).long()
    if found.dim() > 1 or (found.dim() == 1 and len(found) != inputs):
        raise QueryError(f"a target is one class or one for each of {inputs} inputs, not {tuple(found.shape)}")
    if bool(((found < 0) | (found >= classes)).any()):
        raise QueryError(f"the model has classes 0 to {classes - 1}; the target is {target}")
    return found.expand(inputs)
