"""Number the visits of a training: each slot of the layer that computes the output is one, with its step and tags.

    visits = Visits.of_layer(view, "2")
    visits.places(3, blocks)        # which visit of step 3 each slot of any layer belongs to: (slots,)

Slots of other layers belong to the same visits: one by one, where a layer has as many in a step, or by `id`, where it
has more of each example, as a convolution has.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import QueryError
from dualform.slots import Block, View

Array = NDArray[Any]
_ID = "id"


class Visits:
    """All visits of a run, in order.

    Args:
        layer: The layer whose slots they are; None: they are told by a recipe.
        until: The step before which they are.
        steps: Of each visit, ascending.
        columns: Tags of each visit.
    """

    def __init__(self, layer: str | None, until: int, steps: Array, columns: Mapping[str, Array]) -> None:
        self.layer, self.until, self.steps, self.columns = layer, until, steps, columns
        self._bounds = np.searchsorted(steps, np.arange(until + 1))

    @classmethod
    def of_layer(cls, view: View, layer: str) -> "Visits":
        """Return the slots of a layer."""
        until = view.selection.until
        steps, columns = list[Array](), {tag: list[Array]() for tag in view.run.tags}
        for shard in view.run.slot_shards(layer):
            of_passes, rows = shard.passes(layer)
            steps.append(np.repeat(of_passes, rows))
            for tag, parts in columns.items():
                parts.append(shard.decoded(layer, tag))
        every = np.concatenate([np.empty(0, dtype=np.int64), *steps])
        order = np.argsort(every, kind="stable")  # of several processes, each has all steps
        order = order[: np.searchsorted(every[order], until)]
        known = {tag: np.concatenate(parts)[order] for tag, parts in columns.items() if parts}
        return cls(layer, until, every[order], known)

    def __len__(self) -> int:
        return len(self.steps)

    def of(self, steps: range) -> slice:
        """Return which visits are of some steps, one after the other."""
        return slice(int(self._bounds[steps.start]), int(self._bounds[steps.stop]))

    def places(self, steps: range, blocks: Sequence[Block]) -> Array:
        """Return the place of each slot of a layer, in some steps, among the visits of these steps: (slots,).

        -1: it belongs to no single example, as a row of a position table that all of a batch share.
        """
        visits, slots, step = self.of(steps), sum(map(len, blocks)), steps.start
        count = visits.stop - visits.start
        if not slots:
            return np.arange(0)
        if _ID not in self.columns:
            if slots == count:
                return np.arange(slots)
            raise QueryError(
                f"step {step} has {count} visits and {slots} slots of another layer, and no tag {_ID!r} says whose "
                "they are: record with recorder.tag(id=...)"
            )
        own = np.concatenate([block.tag(_ID) for block in blocks])
        if slots == count and (own == self.columns[_ID][visits]).all():
            return np.arange(slots)
        known, first = _first_of_each(self.columns[_ID][visits])
        places, of_one = np.full(slots, -1), _of_one(own)
        found = np.searchsorted(known, own[of_one])
        inside = np.minimum(found, max(len(known) - 1, 0))
        if len(of_one) and (not count or (known[inside] != own[of_one]).any()):
            raise QueryError(
                f"step {step}: a layer has slots of examples that did not go through layer {self.layer!r}, so that the "
                "errors at the output are not known: use method='exact', which follows any training"
            )
        places[of_one] = first[inside]
        return places

    @cached_property
    def examples(self) -> tuple[Array, Array]:
        """The number of each visit's example, -1 where it is of no single one; and each example's first visit.

        Without ids, visits themselves.
        """
        if _ID not in self.columns:
            return np.arange(len(self)), np.arange(len(self))
        ids, number = self.columns[_ID], np.full(len(self), -1)
        of_one = _of_one(ids)
        known, first = _first_of_each(ids)
        number[of_one] = np.searchsorted(known, ids[of_one])
        return number, first


def _of_one(ids: Array) -> Array:
    """Return which rows belong to a single example."""
    return np.flatnonzero(ids != None) if ids.dtype == object else np.arange(len(ids))  # noqa: E711 (entry by entry)


def _first_of_each(ids: Array) -> tuple[Array, Array]:
    """Return the ids there are, sorted, and the first row of each."""
    of_one = _of_one(ids)
    known, first = np.unique(ids[of_one], return_index=True)
    return known, of_one[first]
