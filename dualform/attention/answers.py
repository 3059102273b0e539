"""What can be asked about the slots of a layer, whatever their scores."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualform.attention.plan import AttentionPlan, QueryBatch, Question, Sources
from dualform.attention.questions import Timeline, Top, Total
from dualform.slots import By
from dualform.table import Table

_QUERIES = 1024  # asked at a time, so that memory does not grow with their number
_CELLS = 1 << 26  # queries times training examples with a sum each: half a gigabyte


class Answers:
    """Answers for all queries to a layer. Tables say which query a row belongs to."""

    def __init__(self, sources: Sources, layer: str, queries: Tensor) -> None:
        self.name = layer
        self.queries = queries  # (queries, d_in)
        self._sources, self._layer = sources, sources.view.run.layers[layer]

    def top(self, k: int = 10, by: By | None = None, per: str | None = None, absolute: bool = False) -> Table:
        """The k highest scores: `top(10)`, `top(500, by="label")`, `top(3, per="id")`."""
        table: Table = self.collect(Top(k, by, per, absolute))[0]
        return table

    def total(self, by: By | None = None, absolute: bool = False, valued: bool = False) -> Table:
        """Scores summed over groups of slots: `total(by="label")`, `total(by=("task", "label"))`.

        With `absolute`, sizes are summed; with `valued`, each attention weight counts |c_t| ||e_t|| times.
        """
        table: Table = self.collect(Total(by, absolute, valued))[0]
        return table

    def timeline(self, bins: int = 60, absolute: bool = False, valued: bool = False) -> Table:
        """Scores summed over stretches of training time."""
        table: Table = self.collect(Timeline(bins, absolute, valued))[0]
        return table

    def collect(self, *questions: Question) -> list[Any]:
        """Several answers in one reading of the slots."""
        portion = self._portion(questions)
        parts = [AttentionPlan(batch, questions).answers() for batch in self._batches(portion)]
        return parts[0] if len(parts) == 1 else [_joined(answers, portion) for answers in zip(*parts, strict=True)]

    def plan(self, *questions: Question) -> AttentionPlan:
        """How questions would be answered: `print(layer.plan(Top(10, per="id")).explain())`."""
        return AttentionPlan(next(self._batches(self._portion(questions))), questions)

    def _batches(self, portion: int) -> Iterator[QueryBatch]:
        """The queries, so many at a time."""
        often = self._sources.index.sketches.count(self.name, len(self.queries))
        for queries in torch.split(self.queries, portion):
            yield QueryBatch(self._sources, self._layer, queries, often=often)

    def _portion(self, questions: Sequence[Question]) -> int:
        """How many queries are asked at a time: fewer, where each has a sum for every training example."""
        by = [question.examples for question in questions if isinstance(question, Top) and question.per]
        cells = max((self._sources.view.grouping(self.name, examples).size for examples in by), default=0)
        return max(1, min(_QUERIES, _CELLS // max(cells, 1)))


def _joined(answers: Sequence[Any], portion: int) -> Any:
    """The answers to queries that were asked in several portions, as if asked at once."""
    if isinstance(answers[0], Tensor):
        return torch.cat(list(answers))
    numbered = [{**t.as_arrays(), "query": t["query"] + i * portion} for i, t in enumerate(answers)]
    return Table({name: np.concatenate([columns[name] for columns in numbered]) for name in numbered[0]})
