"""The values that a tag takes: sorted, with None last if some slots have no value.

    labels = TagValues.of(run, "fc", "label")
    labels.places(block.tag("label"))       # where the value of each slot is among them
    labels.take(places)                     # and back

A column of values is an object array where it has a None, else of the tag's own dtype.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store import Run

Array = NDArray[Any]


class TagValues:
    """Distinct values, sorted; `untagged` says that None is one of them, and the last."""

    def __init__(self, values: Array, untagged: bool = False) -> None:
        self._values, self._untagged, self._table = values, untagged, None
        self.size = len(values) + untagged
        # whole numbers that are close together are looked up in a table
        if values.dtype.kind == "i" and len(values) and int(values[-1]) - int(values[0]) < 4 * len(values):
            self._table = np.zeros(int(values[-1]) - int(values[0]) + 1, dtype=np.int64)
            self._table[values.astype(np.int64) - int(values[0])] = np.arange(len(values))

    @classmethod
    def of(cls, run: Run, layer: str, tag: str) -> "TagValues":
        """Find all values of a tag in a layer's slots."""
        per_shard, any_untagged = [], False
        for shard in run.slot_shards(layer):
            column, untagged = shard.tag(layer, tag)
            if untagged is not None and untagged.any():
                column, any_untagged = column[~untagged], True
            values = _unique(column)
            per_shard.append(shard.strings(tag)[values] if run.tags[tag] == "string" else values)
        return cls(_unique(np.concatenate(per_shard)) if per_shard else np.empty(0, dtype=np.int8), any_untagged)

    @classmethod
    def union(cls, several: "Sequence[TagValues]") -> "TagValues":
        """Return all values that are in any of these."""
        values = _unique(np.concatenate([each._values for each in several]))
        return cls(values, any(each._untagged for each in several))

    def to_list(self) -> list[Any]:
        return [*self._values.tolist(), *([None] if self._untagged else [])]

    def take(self, places: NDArray[np.int64]) -> Array:
        """Return the values at some places."""
        missing = places == len(self._values)
        if not missing.any():
            return self._values[places]
        values = np.full(len(places), None, dtype=object)
        values[~missing] = self._values[places[~missing]]
        return values

    def places(self, column: Array) -> NDArray[np.int64]:
        """Return where the values of a column, all of which are known, are among them."""
        missing = None
        if self._untagged and column.dtype == object:
            missing = np.array([value is None for value in column.tolist()], dtype=bool)
            column = column[~missing].astype(self._values.dtype)
        if self._table is None:
            present = np.searchsorted(self._values, column)
        else:  # widened first: a difference may not fit the narrow type of a stored tag
            present = self._table[column.astype(np.int64) - int(self._values[0])]
        if missing is None:
            return present
        places = np.full(len(missing), len(self._values))
        places[~missing] = present
        return places


def _unique(column: Array) -> Array:
    """Do what np.unique does; integers that are close together, such as positions in a text, without sorting."""
    if column.dtype.kind == "i" and len(column):
        low, high = int(column.min()), int(column.max())
        if high - low < 4 * len(column):
            present = np.zeros(high - low + 1, dtype=bool)
            present[column.astype(np.int64) - low] = True  # a difference may not fit the narrow type of a stored tag
            return np.flatnonzero(present) + low
    return np.unique(column)
