"""Find directions of a layer's output: the gradient of one of the model's outputs.

At the layer that computes the model's output the gradient of output 3 is 1 at unit 3 and 0 elsewhere. Further
inside it says how much output 3 grows with each unit, to first order.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.attention.input_rows import InputRows, trainable
from dualform.attention.queries import call, hooked
from dualform.errors import QueryError, UnknownName
from dualform.kinds import ModuleCall, OnErrors, kind_of
from dualform.store import Layer

Array = NDArray[Any]
MEASURES = ("logit", "margin", "loss")  # margin: the logit, less the log of what all others come to, exp by exp
# whole numbers: a class, or one for each input; floats: a direction, or one for each query; None: the predicted class
Target: TypeAlias = "int | Sequence[int] | Sequence[float] | Array | Tensor | None"


def as_direction(target: Target, queries: int, layer: Layer) -> Tensor | None:
    """Return a target that is a direction already, for each query; None: it is a class."""
    direction = None if target is None else torch.as_tensor(target)
    if direction is None or not direction.is_floating_point():
        return None
    if tuple(direction.shape) not in ((layer.d_out,), (queries, layer.d_out)):
        raise QueryError(
            f"a direction of the output of {layer.name!r} has shape ({layer.d_out},), or ({queries}, {layer.d_out}) "
            f"for all queries; this one has {tuple(direction.shape)}"
        )
    return direction.detach().cpu().expand(queries, -1)


@dataclass(frozen=True)
class Directions:
    """The class that is the target of each input, and by layer a direction for each query."""

    classes: Tensor  # (inputs,)
    layers: dict[str, Tensor]  # (queries, d_out) each
    unfollowed: frozenset[str]  # layers that were called without gradients
    measures: Tensor  # what was followed back of each input: (inputs,), float64

    def of(self, layer: str) -> Tensor:
        """Return the direction for each query of a layer; raise if none can be known."""
        if layer in self.unfollowed:
            raise QueryError(
                f"the model calls layer {layer!r} without gradients, so that no target can be followed back to it: "
                "checkpoint with use_reentrant=False, leave torch.no_grad() out of the model, or pass a direction of "
                "the layer's output, a tensor of floats"
            )
        return self.layers[layer]


def directions(
    model: nn.Module,
    layers: Mapping[str, Layer],
    inputs: Any,
    rows: InputRows,
    target: Target,
    of: str = "logit",
    outputs: InputRows | None = None,
) -> Directions:
    """Return the gradient of what `of` makes of the target at each query; `outputs`: rows of these, if others."""
    caught: dict[str, dict[int, tuple[tuple[int, ...], Tensor]]] = defaultdict(dict)
    unfollowed: set[str] = set()

    def on_keys(layer: Layer, of_module: ModuleCall) -> OnErrors | None:
        """Keep errors in the order of the calls, though the last call's come first; where none come they are 0."""
        if torch._C._current_graph_task_id() >= 0:
            return None  # checkpointing calls the layer again on the way back
        if not of_module.followed:
            unfollowed.add(layer.name)
        kind, calls = kind_of(layer), caught[layer.name]
        leading, order = kind.leading(of_module), len(calls)
        calls[order] = leading, torch.zeros(*leading, layer.d_out)

        def on_errors(gradient: Tensor) -> None:
            calls[order] = leading, kind.by_slot(of_module, gradient).view(*leading, layer.d_out).detach().cpu()

        return on_errors

    with hooked(model, layers, on_keys) as modules:
        weights = [p for name in layers for p in modules[name].parameters(recurse=False)]
        with torch.enable_grad(), trainable(weights):
            output = _checked(asked_outputs(call(model, inputs), outputs or rows))
            classes = chosen_classes(target, output)
            wanted = measured(output, classes, of)
            _follow_back(wanted.sum(), weights)
    by_layer = {
        name: torch.cat([rows.chosen(name, order, *calls[order]).flatten(0, -2) for order in sorted(calls)])
        for name, calls in caught.items()
        if calls
    }
    return Directions(classes.cpu(), by_layer, frozenset(unfollowed), wanted.detach().double().cpu())


def measured(outputs: Tensor, classes: Tensor, of: str) -> Tensor:
    """Return what is asked of outputs (inputs, classes): the logit of a class, its margin, or the loss: (inputs,)."""
    if of not in MEASURES:
        raise UnknownName("measure of an output", of, MEASURES)
    logit = outputs.gather(1, classes[:, None])[:, 0]
    if of == "logit":
        return logit
    if of == "loss":
        return outputs.logsumexp(dim=1) - logit
    return logit - outputs.scatter(1, classes[:, None], -torch.inf).logsumexp(dim=1)


def _follow_back(wanted: Tensor, weights: Sequence[nn.Parameter]) -> None:
    """Let errors pass through all layers; every .grad stays as it is."""
    try:
        torch.autograd.grad(wanted, weights, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise QueryError(
            "no target can be followed back through re-entrant checkpointing: checkpoint with "
            "use_reentrant=False, or pass a direction of the layer's output, a tensor of floats"
        ) from error


def asked_outputs(returned: Any, rows: InputRows) -> Tensor:
    """Return the outputs (inputs, classes) that are asked about, out of whatever a model returns."""
    outputs = logits_of(returned)
    if outputs.dim() > 2 and not isinstance(rows.rows, int):
        raise QueryError(
            f"the model has outputs of shape {tuple(outputs.shape)}: say whose target it is, such as rows=-1 for the "
            "last"
        )
    if outputs.dim() < 2:
        raise QueryError(f"a target needs outputs of shape (inputs, classes), not {tuple(outputs.shape)}")
    return rows.chosen_outputs(outputs, returned)


def logits_of(returned: Any) -> Tensor:
    """Return the outputs out of whatever a model returns."""
    outputs = getattr(returned, "logits", returned)
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits", outputs)
    if isinstance(outputs, Sequence) and outputs:
        outputs = outputs[0]
    if not isinstance(outputs, Tensor):
        raise QueryError(f"a target needs a model that returns a tensor of outputs, not {type(outputs).__name__}")
    return outputs


def _checked(outputs: Tensor) -> Tensor:
    """Return outputs (inputs, classes); raise for normalised ones: what is added to one is taken from the others."""
    if not outputs.is_floating_point() or not len(outputs) or outputs.shape[1] < 2:
        return outputs
    rounding, doubled = 32 * torch.finfo(outputs.dtype).eps, outputs.detach().double()
    for what, probabilities in (("log-probabilities", doubled.exp()), ("probabilities", doubled)):
        sums = probabilities.sum(dim=1)
        if bool((probabilities >= 0).all()) and bool(((sums - 1).abs() < rounding).all()):
            raise QueryError(
                f"the model returns {what}, which depend on all classes: let it return logits, and leave the softmax "
                "to the loss (cross_entropy); or pass a direction of the layer's output, such as torch.eye(classes)[3]"
            )
    return outputs


def chosen_classes(target: Target, output: Tensor) -> Tensor:
    """Return the class that is the target of each input: (inputs,)."""
    inputs, classes = output.shape
    chosen = output.argmax(dim=1) if target is None else torch.as_tensor(target, device=output.device).long()
    if chosen.dim() > 1 or (chosen.dim() == 1 and len(chosen) != inputs):
        raise QueryError(f"a target is one class or one for each of {inputs} inputs, not {tuple(chosen.shape)}")
    if bool(((chosen < 0) | (chosen >= classes)).any()):
        raise QueryError(f"the model has classes 0 to {classes - 1}; the target is {target}")
    return chosen.expand(inputs)
