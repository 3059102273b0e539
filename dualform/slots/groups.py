"""Slots by group: by the values of one or more tags, or by stretches of training time."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.errors import QueryError, UnknownName
from dualform.slots.blocks import Block
from dualform.slots.selection import decoded, distinct
from dualform.store import Layer, Run

Array = NDArray[Any]
By = str | tuple[str, ...]


class Grouping(Protocol):
    """Numbers each slot's group; `columns` tells what the groups are, one entry each."""

    @property
    def columns(self) -> dict[str, Array]: ...

    def codes(self, block: Block) -> NDArray[np.int64]: ...


def size(grouping: Grouping) -> int:
    return len(next(iter(grouping.columns.values())))


@dataclass(frozen=True, eq=False)
class ByTags:
    """Groups by tag values; of several tags, the combinations that occur."""

    categories: dict[str, Array]
    combined: NDArray[np.int64]  # sorted codes of the combinations that occur

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
            np.unique(everything._combine({name: decoded(shard, layer.name, name) for name in names}))
            for _, shard in run.chapters()
            if shard.slots(layer.name)
        ]
        return cls(categories, np.unique(np.concatenate(from_shards)))

    @property
    def columns(self) -> dict[str, Array]:
        rest, columns = self.combined, {}
        for name in reversed(self.categories):
            rest, code = np.divmod(rest, len(self.categories[name]))
            columns[name] = self.categories[name][code]
        return dict(reversed(columns.items()))

    @cached_property
    def _places(self) -> "dict[str, _Places]":
        return {name: _Places(known) for name, known in self.categories.items()}

    @cached_property
    def _groups(self) -> "_Places":
        return _Places(self.combined)

    def codes(self, block: Block) -> NDArray[np.int64]:
        return self._groups.of(self._combine({name: block.tag(name) for name in self.categories}))

    def _combine(self, columns: dict[str, Array]) -> NDArray[np.int64]:
        code = np.zeros(1, dtype=np.int64)
        for name, known in self.categories.items():
            code = code * len(known) + self._places[name].of(columns[name])
        return code


class _Places:
    """Where values are among sorted known ones; of whole numbers that are close together, by a table."""

    def __init__(self, known: Array) -> None:
        self._known, self._table = known, None
        if known.dtype.kind == "i" and len(known) and int(known[-1]) - int(known[0]) < 4 * len(known):
            self._table = np.zeros(int(known[-1]) - int(known[0]) + 1, dtype=np.int64)
            self._table[known.astype(np.int64) - int(known[0])] = np.arange(len(known))

    def of(self, values: Array) -> NDArray[np.int64]:
        if self._table is None:
            return np.searchsorted(self._known, values)
        # widened first: a difference may not fit the narrow type of a stored tag
        found: NDArray[np.int64] = self._table[values.astype(np.int64) - int(self._known[0])]
        return found


@dataclass(frozen=True, eq=False)
class ByTime:
    """Stretches of training time, as equal as whole steps allow."""

    bins: int
    until: int

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise QueryError(f"bins must be at least 1, not {self.bins}")

    @property
    def columns(self) -> dict[str, Array]:
        edges = -(-np.arange(self.bins + 1) * self.until // self.bins)  # the first step of each bin
        return {"first_step": edges[:-1], "last_step": edges[1:]}

    def codes(self, block: Block) -> NDArray[np.int64]:
        return block.steps * self.bins // max(self.until, 1)


@dataclass(frozen=True, eq=False)
class AllInOne:
    """One group of everything."""

    @property
    def columns(self) -> dict[str, Array]:
        return {"group": np.array(["all"])}

    def codes(self, block: Block) -> NDArray[np.int64]:
        return np.zeros(len(block), dtype=np.int64)
