"""What is kept of a run so that further queries read little: sketches of keys, members of groups, summed examples.

It takes as long as several readings to make, so it is made when a layer has been asked a few queries.
"""

from collections import Counter
from functools import lru_cache
from typing import Any

from torch import Tensor

from dualform.attention.examples import Examples, ExamplesFold
from dualform.attention.search import Members, MembersFold, Search
from dualform.attention.sketch import Budget, Sketch
from dualform.engine import Plan, carry_out
from dualform.kinds import kind_of
from dualform.slots import By, Slots, View
from dualform.store import Run

_KEPT_BYTES = 900 << 20  # of all that is kept of a run and its views
_FEW_QUERIES = 3  # to make a sketch takes as long as to read the keys for each of them


class Sketches:
    """Of the layers of a run, for all its views."""

    def __init__(self, run: Run) -> None:
        self._run, self.budget = run, Budget(_KEPT_BYTES)
        self._asked: Counter[str] = Counter()
        self.of = lru_cache(maxsize=None)(self._make)

    def count(self, layer: str, queries: int) -> bool:
        """Count queries to a layer; whether there were enough, with these, for an index to pay."""
        self._asked[layer] += queries
        return self._asked[layer] > _FEW_QUERIES

    def _make(self, layer: str) -> Sketch | None:
        described = self._run.layers[layer]
        if not kind_of(described).vectors:
            return None
        return Sketch.of(Slots(self._run, described).keys, described.d_in, self.budget)


class Index:
    """Of one view: ways to the best slots, or the best training examples, that read few keys."""

    def __init__(self, view: View, sketches: Sketches) -> None:
        self._view, self.sketches = view, sketches
        self.members = lru_cache(maxsize=8)(self._members)
        self.examples = lru_cache(maxsize=8)(self._examples)
        self.sums: dict[Any, Any] = {}  # folds whose sums are good for all queries to come

    def search(self, layer: str, queries: Tensor, k: int, by: By | None, absolute: bool) -> Search | None:
        """A search for single slots; None if there is no sketch, or none for these queries."""
        sketch = self.sketches.of(layer)
        if sketch is None or not sketch.takes(queries):
            return None
        return Search(self._view.slots(layer).keys, sketch, self.members(layer, by), k, absolute)

    def _members(self, layer: str, by: By | None) -> Members:
        fold = MembersFold(self._view.grouping(layer, by))
        members: Members = carry_out(Plan(self._view.slots(layer), self._view.selection, (fold,)))[0]
        return members

    def _examples(self, layer: str, by: tuple[str, ...]) -> Examples | None:
        """What shares the first of these tags summed up, by groups of the others; None if there is no room for it."""
        slots, grouping = self._view.slots(layer), self._view.grouping(layer, by)
        nbytes = grouping.size * slots.layer.d_in * slots.dtype.itemsize
        if not kind_of(slots.layer).vectors or nbytes > self.sketches.budget.left:
            return None
        fold = ExamplesFold(slots.layer.d_in, slots.dtype, grouping)
        self.sketches.budget.take(nbytes, fold.keys)
        carry_out(Plan(slots, self._view.selection, (fold,)))
        return Examples.of(fold, by[1:], self.sketches.budget)
