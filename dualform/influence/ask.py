"""Ask a memory for influence: which layers, which outputs, by which method.

influence_of(view, model, inputs, target=None, of="margin", method="fast")
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dualform.attention.directions import Target, directions
from dualform.attention.input_rows import InputRows
from dualform.attention.queries import as_queries, queries_of
from dualform.errors import NotRecorded, QueryError
from dualform.influence.fast import Asked, Progress, estimate
from dualform.influence.result import Influence, check_room
from dualform.influence.visits import Visits
from dualform.slots import View


def influence_of(
    view: View,
    model: nn.Module,
    inputs: Any,
    target: Target,
    of: str,
    rows: int | slice | None,
    max_bytes: int,
    progress: Progress,
) -> Influence:
    """Estimate the influence of all training examples on outputs of a model, from the recording alone."""
    if view.selection.conditions:
        raise QueryError("influence is of a whole training, or of its beginning: ask a memory without where or without")
    if not view.run.manifest.storage.values:
        raise NotRecorded("influence needs values, and this run holds keys only")
    layers = view.run.layers
    input_rows = InputRows(model, layers, inputs, rows)
    queries = as_queries(view, queries_of(model, layers, inputs, input_rows))
    towards = directions(model, layers, inputs, input_rows, target, of)
    asked = {
        name: Asked(own, towards.of(name), torch.from_numpy(input_rows.owners(name)))
        for name, own in queries.items()
        if name in towards.layers
    }
    tests = len(towards.classes)
    asked = {name: _owned(own) for name, own in asked.items()}
    visits = Visits(view, output_layer(view, asked))
    check_room(len(visits), tests, max_bytes)
    result = estimate(view, asked, visits, tests, progress)
    return Influence(towards.classes, of, towards.measures, "fast", result.notes, visits, result.scores)


def output_layer(view: View, asked: Mapping[str, Asked]) -> str:
    """Return the layer that computes the model's output: the last one that was called."""
    return list(asked)[-1]


def _owned(asked: Asked) -> Asked:
    """Leave out queries that are no single input's."""
    owned = asked.owners >= 0
    return asked if bool(owned.all()) else Asked(asked.queries[owned], asked.directions[owned], asked.owners[owned])
