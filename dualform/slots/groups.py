"""Slots by group: by the values of one or more tags, or by stretches of training time."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.errors import QueryError, UnknownName
from dualform.slots.blocks import Block
from dualform.slots.selection import distinct
from dualform.store import Layer, Run

Array = NDArray[Any]
By = str | tuple[str, ...]


class Grouping(Protocol):
    """Numbers each slot's group; `columns` says what the groups are, one entry each."""

    @property
    def size(self) -> int:
        """How many groups there are."""

    @property
    def columns(self) -> dict[str, Array]: ...

    def codes(self, block: Block) -> NDArray[np.int64]: ...


def grouping_of(run: Run, until: int, layer: str, by: By | int | None) -> Grouping:
    """Group slots by tags, into so many bins of time, or all in one group."""
    if by is None:
        return OneGroup()
    return ByTime(by, until) if isinstance(by, int) else ByTags.of(run, run.layers[layer], by)


class ByTags:
    """Groups by tag values; of several tags, the combinations that occur.

    `combined` has the sorted codes of these: the first tag's place among its values, times their number, and so on.
    """

    def __init__(self, categories: dict[str, Array], combined: NDArray[np.int64]) -> None:
        self.categories, self._combined, self.size = categories, combined, len(combined)
        self._places = {name: _SortedLookup(known) for name, known in categories.items()}
        self._groups = _SortedLookup(combined)

    @classmethod
    def of(cls, run: Run, layer: Layer, by: By) -> "ByTags":
        names = (by,) if isinstance(by, str) else tuple(by)
        for name in names:
            if name not in run.tags:
                raise UnknownName("tag", name, run.tags)
        categories = {name: distinct(run, layer.name, name) for name in names}
        if len(names) == 1:
            return cls(categories, np.arange(len(categories[names[0]])))
        everything = cls(categories, np.empty(0, dtype=np.int64))
        from_shards = [
            np.unique(everything._combine({name: shard.decoded(layer.name, name) for name in names}))
            for _, shard in run.chapters
            if shard.slots(layer.name)
        ]
        return cls(categories, np.unique(np.concatenate(from_shards)))

    @property
    def columns(self) -> dict[str, Array]:
        rest, columns = self._combined, {}
        for name in reversed(self.categories):
            rest, code = np.divmod(rest, len(self.categories[name]))
            columns[name] = self.categories[name][code]
        return dict(reversed(columns.items()))

    def codes(self, block: Block) -> NDArray[np.int64]:
        if len(self.categories) == 1:  # then every value is a group
            ((name, places),) = self._places.items()
            return places.of(block.tag(name))
        return self._groups.of(self._combine({name: block.tag(name) for name in self.categories}))

    def _combine(self, columns: dict[str, Array]) -> NDArray[np.int64]:
        code = np.zeros(1, dtype=np.int64)
        for name, known in self.categories.items():
            code = code * len(known) + self._places[name].of(columns[name])
        return code


class _SortedLookup:
    """Looks up where values are among sorted ones; whole numbers that are close together by a table."""

    def __init__(self, known: Array) -> None:
        self._known, self._table = known, None
        if known.dtype.kind == "i" and len(known) and int(known[-1]) - int(known[0]) < 4 * len(known):
            self._table = np.zeros(int(known[-1]) - int(known[0]) + 1, dtype=np.int64)
            self._table[known.astype(np.int64) - int(known[0])] = np.arange(len(known))

    def of(self, values: Array) -> NDArray[np.int64]:
        if self._table is None:
            return np.searchsorted(self._known, values)
        # widened first: a difference may not fit the narrow type of a stored tag
        places: NDArray[np.int64] = self._table[values.astype(np.int64) - int(self._known[0])]
        return places


class ByTime:
    """Bins of training time, as equal as whole steps allow."""

    def __init__(self, bins: int, until: int) -> None:
        if bins < 1:
            raise QueryError(f"bins must be at least 1, not {bins}")
        self.size, self._until = bins, until

    @property
    def columns(self) -> dict[str, Array]:
        edges = -(-np.arange(self.size + 1) * self._until // self.size)  # the first step of each bin
        return {"first_step": edges[:-1], "last_step": edges[1:]}

    def codes(self, block: Block) -> NDArray[np.int64]:
        return block.steps * self.size // max(self._until, 1)


class OneGroup:
    """One group of all slots."""

    size = 1

    @property
    def columns(self) -> dict[str, Array]:
        return {"group": np.array(["all"])}

    def codes(self, block: Block) -> NDArray[np.int64]:
        return np.zeros(len(block), dtype=np.int64)
