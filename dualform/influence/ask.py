"""Ask a memory for influence: of which outputs, through which layers, by which method.

influence(view, model, inputs, Wanted(target, "margin", None), Method("fast", ...))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dualform.attention.directions import Directions, Target, asked_outputs, chosen_classes, directions, measured
from dualform.attention.input_rows import InputRows
from dualform.attention.queries import as_queries, call, hooked, queries_of
from dualform.errors import NotRecorded, QueryError, UnknownName, listing
from dualform.influence.exact import exact as followed
from dualform.influence.fast import Asked, Progress, estimate
from dualform.influence.result import Influence, check_room
from dualform.influence.visits import Visits
from dualform.recipe import Recipe
from dualform.recipe.repeatable import repeatable
from dualform.recipe.retrain import recipe_of
from dualform.slots import View

_MAX_GROWTH = 1e4  # of the adjoint's norm, beyond which the training is close to chaos


@dataclass(frozen=True)
class Wanted:
    """Which outputs of a model are asked about."""

    target: Target
    of: str
    rows: int | slice | None


@dataclass(frozen=True)
class Method:
    """How influence is found out."""

    name: str
    around: float | Sequence[float]  # of "exact"
    max_bytes: int
    progress: Progress


def influence(view: View, model: nn.Module, inputs: Any, wanted: Wanted, by: Method) -> Influence:
    """Return the influence of all training examples on outputs of a model."""
    methods = {"fast": fast, "exact": exact}
    if by.name not in methods:
        raise UnknownName("method of influence", by.name, methods)
    return methods[by.name](view, model, inputs, wanted, by)


def fast(view: View, model: nn.Module, inputs: Any, wanted: Wanted, by: Method) -> Influence:
    """Estimate it from the recording alone."""
    check_view(view)
    if not view.run.manifest.storage.values:
        raise NotRecorded("influence needs values, and this run holds keys only")
    asked, towards = asked_of_layers(view, model, inputs, wanted)
    shared = [name for name, own in asked.items() if not len(own.queries)]
    asked = {name: own for name, own in asked.items() if name not in shared}
    visits = Visits.of_layer(view, list(asked)[-1])  # the layer that was called last computes the output
    check_room(len(visits), len(towards.classes), by.max_bytes)
    result = estimate(view, asked, visits, len(towards.classes), by.progress)
    notes = [f"without {listing(shared)}, whose rows belong to no single input"] if shared else []
    notes += result.notes
    return Influence(towards.classes, wanted.of, towards.measures, "fast", notes, visits, result.scores)


def asked_of_layers(view: View, model: nn.Module, inputs: Any, wanted: Wanted) -> tuple[dict[str, Asked], Directions]:
    """Return what is asked of each layer: all queries of inputs, and the gradients of the outputs that are wanted."""
    layers = view.run.layers
    rows = InputRows(model, layers, inputs)  # all: what a layer says of an earlier token is in the last one's output
    outputs = rows if wanted.rows is None else rows.asking(wanted.rows)
    queries = as_queries(view, queries_of(model, layers, inputs, rows))
    towards = directions(model, layers, inputs, rows, wanted.target, wanted.of, outputs)
    asked = {
        name: _owned(Asked(own, towards.of(name), torch.from_numpy(rows.owners(name))))
        for name, own in queries.items()
        if name in towards.layers
    }
    return asked, towards


def outputs_of(view: View, model: nn.Module, inputs: Any, wanted: Wanted) -> Callable[[nn.Module], Tensor]:
    """Return what gives the outputs that are asked about, of a model or of one that was trained again.

    Whose the rows of (inputs, rows, classes) are is found out by the model.
    """
    input_rows = InputRows(model, view.run.layers, inputs, wanted.rows)
    return lambda model: asked_outputs(call(model, inputs), input_rows)


def exact(view: View, model: nn.Module, inputs: Any, wanted: Wanted, by: Method) -> Influence:
    """Follow outputs back through the training that the run's recipe does; averaged over weights of the examples."""
    check_view(view)
    recipe, repetition = recipe_of(view.run), view.run.manifest.recipe
    assert repetition is not None
    around = [by.around] if isinstance(by.around, int | float) else list(by.around)
    if not around or not all(isinstance(weight, int | float) and 0 < weight <= 1 for weight in around):
        raise QueryError(f"around is a weight above 0 and up to 1, or several of them, not {by.around!r}")
    outputs, steps = outputs_of(view, model, inputs, wanted), view.selection.until // repetition.optimizers
    with hooked(model, {}, lambda layer, of_module: None), torch.no_grad():  # in eval mode, for a while
        logits = outputs(model)
        classes = chosen_classes(wanted.target, logits)
        values = measured(logits, classes, wanted.of).double()
    with repeatable(repetition.threads):
        check_room(steps * len(recipe.batch_of(0)), len(classes), by.max_bytes)

    def measure(model: nn.Module) -> Tensor:
        return measured(outputs(model), classes, wanted.of)

    def follow(number: int, step: int, of: int) -> None:
        by.progress(number * of + step, len(around) * of)

    parts = [
        followed(recipe, repetition.threads, steps, measure, float(weight), partial(follow, number))
        for number, weight in enumerate(around)
    ]
    scores = torch.stack([part.scores for part in parts]).mean(dim=0)
    visits = Visits(None, steps, parts[0].steps, parts[0].columns)
    notes = _notes(recipe, model, max(part.growth for part in parts))
    return Influence(classes, wanted.of, values, "exact", notes, visits, scores)


def _notes(recipe: Recipe, model: nn.Module, growth: float) -> list[str]:
    """Return what an exact derivative does not hold."""
    notes = []
    if growth >= _MAX_GROWTH:
        notes.append(
            f"the adjoint has grown {growth:.0e} times: the training is close to chaos, and its derivative predicts "
            "little"
        )
    if any(isinstance(module, _BatchNorm) and module.track_running_stats for module in model.modules()):
        notes.append("running means of BatchNorm are taken as they were, though they depend on the examples, too")
    if recipe.autocast is not None:
        notes.append(f"losses are differentiated in full precision, not in {recipe.autocast}")
    return notes


def check_view(view: View) -> None:
    """Raise unless a view is of a whole training, or of its beginning."""
    if view.selection.conditions:
        raise QueryError(
            "influence is of a whole training, or of its beginning, and so are suspects: ask a memory without where or "
            "without"
        )
    if not view.selection.until:
        raise NotRecorded("no step was recorded")


def _owned(asked: Asked) -> Asked:
    """Leave out queries that are no single input's."""
    owned = asked.owners >= 0
    return asked if bool(owned.all()) else Asked(asked.queries[owned], asked.directions[owned], asked.owners[owned])
