"""Plan how questions about some queries to a layer are answered.

    plan = AttentionPlan(batch, [Top(10, per="id"), Total(by="label")])
    plan.explain()                  # whether a scan, an index or summed keys will answer each
    plan.answers()                  # one reading of the slots for all that need one

A route is decided once, when a plan is made; if an index pays, it is made then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from dualform.attention.folds import Scores
from dualform.attention.index import Index
from dualform.dual.strategy import Duals
from dualform.engine import Fold, Plan, carry_out
from dualform.slots import By, Grouping, Slots, View
from dualform.store import Layer


@dataclass(frozen=True)
class Sources:
    """What answers are made of: the slots of a view, what was made of them, and an index of their keys."""

    view: View
    duals: Duals
    index: Index


@dataclass(frozen=True)
class QueryBatch:
    """Some queries to a layer, and what its slots score for them: attention weights, or scores computed before."""

    sources: Sources
    slots: Slots
    queries: Tensor  # (queries, d_in)
    scores: Scores  # one for all folds, so that they are computed once
    often: bool = False  # enough has been asked for an index to pay,
    again: bool = False  # even before these queries
    asked: Layer | None = None  # that queries are of, where slots are those of another one with a tied weight

    @property
    def layer(self) -> Layer:
        """The layer that slots belong to."""
        return self.slots.layer

    def grouping(self, by: By | int | None) -> Grouping:
        return self.sources.view.grouping(self.layer.name, by)


@dataclass(frozen=True)
class Route:
    """How an answer is found: what to feed, if anything, and what to make of it, which may be another route."""

    how: str
    answer: "Callable[[Any], Any | Route]"
    fold: Fold | None = None  # None: nothing has to be read


class Question(Protocol):
    """Something to be asked of a layer."""

    def route(self, batch: QueryBatch) -> Route:
        """Decide, once, how it will be answered."""


class AttentionPlan:
    """How questions about some queries will be answered."""

    def __init__(self, batch: QueryBatch, questions: Sequence[Question]) -> None:
        self._batch, self._questions = batch, questions
        self._routes = [question.route(batch) for question in questions]

    def explain(self) -> str:
        """Return a line for each question: a scan, an index, or sums that were kept."""
        made = "" if self._batch.layer.stored else "; slots are made again by training, unless they are in the cache"
        lines = []
        for question, route in zip(self._questions, self._routes, strict=True):
            lines.append(f"{question}: {route.how}{made if route.fold is not None else ''}")
        return "\n".join(lines)

    def answers(self) -> list[Any]:
        """Read the slots once for all questions that need it, and return the answers."""
        routes: list[Any] = list(self._routes)
        while any(isinstance(route, Route) for route in routes):
            folds = [route.fold for route in routes if isinstance(route, Route) and route.fold is not None]
            slots, selection = self._batch.slots, self._batch.sources.view.selection
            results = iter(carry_out(Plan(slots, selection, tuple(folds))) if folds else ())
            routes = [
                route.answer(None if route.fold is None else next(results)) if isinstance(route, Route) else route
                for route in routes
            ]
        return routes
