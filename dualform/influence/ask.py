"""Ask a memory for influence: of which outputs, through which layers, by which method.

fast(view, model, inputs, Wanted(target, "margin", None), ...)      # from the recording
exact(view, model, inputs, Wanted(...), around=(1.0,))              # through the recipe
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dualform.attention.directions import Directions, Target, chosen_classes, directions, logits_of, measured
from dualform.attention.input_rows import InputRows
from dualform.attention.queries import as_queries, call, queries_of
from dualform.errors import NotRecorded, QueryError
from dualform.influence.exact import exact as followed
from dualform.influence.exact import warning
from dualform.influence.fast import Asked, Progress, estimate
from dualform.influence.result import Influence, check_room
from dualform.influence.visits import Visits
from dualform.recipe.retrain import recipe_of
from dualform.slots import View


@dataclass(frozen=True)
class Wanted:
    """Which outputs of a model are asked about."""

    target: Target
    of: str
    rows: int | slice | None


def fast(view: View, model: nn.Module, inputs: Any, wanted: Wanted, max_bytes: int, progress: Progress) -> Influence:
    """Estimate the influence of all training examples on outputs of a model, from the recording alone."""
    _check_view(view)
    if not view.run.manifest.storage.values:
        raise NotRecorded("influence needs values, and this run holds keys only")
    asked, towards = asked_of_layers(view, model, inputs, wanted)
    visits = Visits.of(view, output_layer(view, asked))
    check_room(len(visits), len(towards.classes), max_bytes)
    result = estimate(view, asked, visits, len(towards.classes), progress)
    return Influence(towards.classes, wanted.of, towards.measures, "fast", result.notes, visits, result.scores)


def asked_of_layers(view: View, model: nn.Module, inputs: Any, wanted: Wanted) -> tuple[dict[str, Asked], Directions]:
    """Return what is asked of each layer: the queries of inputs, and the gradients of what is wanted."""
    layers = view.run.layers
    input_rows = InputRows(model, layers, inputs, wanted.rows)
    queries = as_queries(view, queries_of(model, layers, inputs, input_rows))
    towards = directions(model, layers, inputs, input_rows, wanted.target, wanted.of)
    asked = {
        name: _owned(Asked(own, towards.of(name), torch.from_numpy(input_rows.owners(name))))
        for name, own in queries.items()
        if name in towards.layers
    }
    return asked, towards


def outputs_of(inputs: Any, wanted: Wanted) -> Callable[[nn.Module], Tensor]:
    """Return what measures a model's outputs: (inputs,)."""
    outputs = _outputs_of(inputs, wanted.rows)

    def measure(model: nn.Module) -> Tensor:
        logits = outputs(model)
        return measured(logits, chosen_classes(wanted.target, logits), wanted.of)

    return measure


def exact(
    view: View, model: nn.Module, inputs: Any, wanted: Wanted, around: Sequence[float], progress: Progress
) -> Influence:
    """Follow outputs back through the training that the run's recipe does; averaged over weights of the examples."""
    _check_view(view)
    recipe, repetition = recipe_of(view.run), view.run.manifest.recipe
    assert repetition is not None
    if not around or not all(0 < weight <= 1 for weight in around):
        raise QueryError(f"around is a weight above 0 and up to 1, or several of them, not {around!r}")
    outputs, steps = _outputs_of(inputs, wanted.rows), view.selection.until // repetition.optimizers
    with torch.no_grad():
        classes = chosen_classes(wanted.target, outputs(model.eval()))

    def measure(trained: nn.Module) -> Tensor:
        return measured(outputs(trained), classes, wanted.of)

    def follow(number: int, step: int, of: int) -> None:
        progress(number * of + step, len(around) * of)

    parts = [
        followed(recipe, repetition.threads, steps, measure, float(weight), partial(follow, number))
        for number, weight in enumerate(around)
    ]
    notes = [note for part in parts if (note := warning(part.growth)) is not None]
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        notes.append("running means of BatchNorm are taken as they were, though they depend on the examples, too")
    with torch.no_grad():
        values = measure(model.eval()).double()
    scores = torch.stack([part.scores for part in parts]).mean(dim=0)
    visits = Visits(None, steps, parts[0].steps, parts[0].columns)
    return Influence(classes, wanted.of, values, "exact", tuple(dict.fromkeys(notes)), visits, scores)


def _check_view(view: View) -> None:
    if view.selection.conditions:
        raise QueryError("influence is of a whole training, or of its beginning: ask a memory without where or without")
    if not view.selection.until:
        raise NotRecorded("no step was recorded")


def _outputs_of(inputs: Any, rows: int | slice | None) -> Callable[[nn.Module], Tensor]:
    """Return what gives a model's outputs for inputs: (inputs, classes)."""

    def outputs(model: nn.Module) -> Tensor:
        logits = logits_of(call(model, inputs))
        if logits.dim() == 3 and isinstance(rows, int):
            logits = logits[:, rows]
        if logits.dim() != 2:
            raise QueryError(f"influence needs outputs of shape (inputs, classes), not {tuple(logits.shape)}")
        return logits

    return outputs


def output_layer(view: View, asked: Mapping[str, Asked]) -> str:
    """Return the layer that computes the model's output: the last one that was called."""
    return list(asked)[-1]


def _owned(asked: Asked) -> Asked:
    """Leave out queries that are no single input's."""
    owned = asked.owners >= 0
    return asked if bool(owned.all()) else Asked(asked.queries[owned], asked.directions[owned], asked.owners[owned])
