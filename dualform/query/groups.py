"""Slots by group: by the values of one or more tags, or by stretches of training time."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.errors import QueryError, UnknownName
from dualform.query.scan import Block
from dualform.query.selection import decoded, distinct
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

    def codes(self, block: Block) -> NDArray[np.int64]:
        whole = self._combine({name: block.tag(name) for name in self.categories})
        return _places(self.combined, whole)

    def _combine(self, columns: dict[str, Array]) -> NDArray[np.int64]:
        code = np.zeros(1, dtype=np.int64)
        for name, known in self.categories.items():
            code = code * len(known) + _places(known, columns[name])
        return code


def _places(known: Array, column: Array) -> NDArray[np.int64]:
    """Where each value is among the sorted known ones; if those are whole numbers without a gap, by subtraction."""
    if known.dtype.kind == "i" and len(known) and int(known[-1]) - int(known[0]) == len(known) - 1:
        return column.astype(np.int64) - int(known[0])
    return np.searchsorted(known, column)


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
