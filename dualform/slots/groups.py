"""Slots by group: by the values of one or more tags, or by stretches of training time."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.errors import QueryError, UnknownName
from dualform.slots.blocks import Block
from dualform.slots.tag_values import TagValues
from dualform.store import Layer, Run

Array = NDArray[Any]
By = str | tuple[str, ...]
ALL = slice(None)


class Grouping(Protocol):
    """Numbers each slot's group; `columns` says what groups are, one entry each."""

    @property
    def size(self) -> int:
        """How many groups there are."""

    def columns(self, groups: Array | slice = ALL) -> dict[str, Array]: ...

    def codes(self, block: Block) -> NDArray[np.int64]: ...


def grouping_of(run: Run, until: int, layer: str, by: By | int | None) -> Grouping:
    """Group slots by tags, into so many bins of time, or all in one group."""
    if by is None:
        return OneGroup()
    return ByTime(by, until) if isinstance(by, int) else ByTags.of(run, run.layers[layer], by)


class ByTags:
    """Groups by tag values; of several tags, the combinations that occur. Slots without a value are a group, too.

    `combined` has the sorted codes of these: the first tag's place among its values, times their number, and so on.
    """

    def __init__(self, categories: dict[str, TagValues], combined: NDArray[np.int64]) -> None:
        self.categories, self._combined, self.size = categories, combined, len(combined)
        self._groups = TagValues(combined)

    @classmethod
    def of(cls, run: Run, layer: Layer, by: By) -> "ByTags":
        names = (by,) if isinstance(by, str) else tuple(by)
        for name in names:
            if name not in run.tags:
                raise UnknownName("tag", name, run.tags)
        categories = {name: TagValues.of(run, layer.name, name) for name in names}
        if len(names) == 1:
            return cls(categories, np.arange(categories[names[0]].size))
        everything = cls(categories, np.empty(0, dtype=np.int64))
        from_shards = [
            np.unique(everything._combine({name: shard.decoded(layer.name, name) for name in names}))
            for _, shard in run.chapters
            if shard.slots(layer.name)
        ]
        return cls(categories, np.unique(np.concatenate(from_shards)))

    @classmethod
    def union(cls, groupings: "Sequence[ByTags]") -> "ByTags":
        """Return the groups that are in any of these, which are by the same tags."""
        names = list(groupings[0].categories)
        categories = {name: TagValues.union([grouping.categories[name] for grouping in groupings]) for name in names}
        everything = cls(categories, np.empty(0, dtype=np.int64))
        return cls(categories, np.unique(np.concatenate([everything._combine(each.columns()) for each in groupings])))

    def columns(self, groups: Array | slice = ALL) -> dict[str, Array]:
        return {name: self.categories[name].take(places) for name, places in self.places(groups).items()}

    def places(self, groups: Array | slice = ALL) -> dict[str, NDArray[np.int64]]:
        """Return the place of each group's value among those of a tag, for each tag."""
        rest, places = self._combined[groups], {}
        for name in reversed(self.categories):
            rest, places[name] = np.divmod(rest, self.categories[name].size)
        return dict(reversed(places.items()))

    def codes(self, block: Block) -> NDArray[np.int64]:
        if len(self.categories) == 1:  # then every value is a group
            ((name, known),) = self.categories.items()
            return known.places(block.tag(name))
        return self._groups.places(self._combine({name: block.tag(name) for name in self.categories}))

    def _combine(self, columns: dict[str, Array]) -> NDArray[np.int64]:
        code = np.zeros(1, dtype=np.int64)
        for name, known in self.categories.items():
            code = code * known.size + known.places(columns[name])
        return code


class ByTime:
    """Bins of training time, as equal as whole steps allow."""

    def __init__(self, bins: int, until: int) -> None:
        if bins < 1:
            raise QueryError(f"bins must be at least 1, not {bins}")
        self.size, self._until = bins, until

    def columns(self, groups: Array | slice = ALL) -> dict[str, Array]:
        edges = -(-np.arange(self.size + 1) * self._until // self.size)  # the first step of each bin
        return {"first_step": edges[:-1][groups], "last_step": edges[1:][groups]}

    def codes(self, block: Block) -> NDArray[np.int64]:
        return block.steps * self.size // max(self._until, 1)


class OneGroup:
    """One group of all slots."""

    size = 1

    def columns(self, groups: Array | slice = ALL) -> dict[str, Array]:
        return {"group": np.array(["all"])[groups]}

    def codes(self, block: Block) -> NDArray[np.int64]:
        return np.zeros(len(block), dtype=np.int64)
