"""Keep sketches of keys, members of groups and summed examples, so that further queries read little.

It takes as long as several readings to make, so it is made when a layer has been asked a few queries.
"""

from collections import Counter
from functools import lru_cache
from typing import Any
from weakref import finalize

from dualform.attention.examples import Examples, ExamplesFold
from dualform.attention.search import Members, MembersFold, Search, Sketch
from dualform.engine import Plan, carry_out
from dualform.kinds import kind_of
from dualform.slots import By, KeyRows, Slots, View
from dualform.store import Run

FEW_QUERIES = 3  # to make a sketch takes as long as to read the keys for each of them
_KEPT_BYTES = 900 << 20  # of all that is kept of a run and its views


class Budget:
    """The bytes that everything kept for later queries may take; freed with what took them."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes

    def take(self, nbytes: int, owner: object) -> None:
        """Take bytes until the owner is garbage."""
        self.left -= nbytes
        finalize(owner, self.give_back, nbytes)

    def give_back(self, nbytes: int) -> None:
        self.left += nbytes


class Sketches:
    """The sketches of a run's layers, for all its views; `asked` counts the queries to each layer."""

    def __init__(self, run: Run) -> None:
        self._run, self.budget = run, Budget(_KEPT_BYTES)
        self.asked: Counter[str] = Counter()
        self.of = lru_cache(maxsize=None)(self._sketch_layer)

    def _sketch_layer(self, layer: str) -> Sketch | None:
        described = self._run.layers[layer]
        # what a sketch leaves to be scored would be made again for every query
        if not kind_of(described).vectors or not described.stored:
            return None
        return self.sketch(Slots(self._run, described).keys, described.d_in)

    def sketch(self, keys: KeyRows, width: int) -> Sketch | None:
        """Make a sketch within the budget; None if there is no room, or no bounds for such keys."""
        sketch = Sketch.of(keys, width, self.budget.left)
        if sketch is not None:
            self.budget.take(sketch.nbytes, sketch)
        return sketch


class Index:
    """Finds the best slots, or training examples, of one view while reading few keys."""

    def __init__(self, view: View, sketches: Sketches) -> None:
        self._view, self.sketches = view, sketches
        self.search = lru_cache(maxsize=8)(self._search)
        self.members = lru_cache(maxsize=8)(self._members)
        self.examples = lru_cache(maxsize=8)(self._examples)
        self.sums: dict[Any, Any] = {}  # folds whose sums are good for all queries to come

    def _search(self, layer: str, by: By | None) -> Search | None:
        """Return a search for single slots, by groups; None if there is no sketch."""
        sketch = self.sketches.of(layer)
        return None if sketch is None else Search(self._view.slots(layer).keys, sketch, self.members(layer, by))

    def _members(self, layer: str, by: By | None) -> Members:
        fold = MembersFold(self._view.grouping(layer, by))
        members: Members = carry_out(Plan(self._view.slots(layer), self._view.selection, (fold,)))[0]
        return members

    def _examples(self, layer: str, tags: tuple[str, ...], by: tuple[str, ...]) -> Examples | None:
        """Sum up the slots that share all of these tags, in groups by some of them; None if there is no room."""
        slots, grouping, budget = self._view.slots(layer), self._view.grouping(layer, tags), self.sketches.budget
        nbytes = grouping.size * slots.layer.d_in * slots.dtype.itemsize
        if not kind_of(slots.layer).vectors or nbytes > budget.left:
            return None
        fold = ExamplesFold(slots.layer.d_in, slots.dtype, grouping)
        budget.take(nbytes, fold.keys)
        carry_out(Plan(slots, self._view.selection, (fold,)))
        sketch = self.sketches.sketch(fold.keys, slots.layer.d_in)
        return None if sketch is None else fold.examples(by, sketch)
