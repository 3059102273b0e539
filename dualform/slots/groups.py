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


def tag_names(by: By) -> tuple[str, ...]:
    """Return the tags to group by, each once."""
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise QueryError(f"by is a tag or a tuple of tags, such as 'label' or ('task', 'label'), not {by!r}")
    return tuple(dict.fromkeys(names))


def checked_by(by: Any) -> By:
    """Return a tag, or a tuple of them, of what the user says."""
    return by if isinstance(by, str) else tag_names(by)


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

    Tags are joined one by one. Before the next one is, combinations so far are numbered anew by those that occur: so
    numbers stay below the square of the number of slots, however many tags there are.
    """

    def __init__(self, categories: dict[str, TagValues], places: Array) -> None:
        """Take the place of each combination's values, tag by tag: (tags, combinations), in any order."""
        self.categories = categories
        self._joined: list[TagValues] = []  # for each tag, combinations up to it: number of the one before, and place
        before = np.zeros(places.shape[1], dtype=np.int64)
        for known, place in zip(categories.values(), places, strict=True):
            joined = before * known.size + place
            self._joined.append(TagValues(np.unique(joined)))
            before = self._joined[-1].places(joined)
        self.size = self._joined[-1].size

    @classmethod
    def of(cls, run: Run, layer: Layer, by: By) -> "ByTags":
        names = tag_names(by)
        for name in names:
            if name not in run.tags:
                raise UnknownName("tag", name, run.tags)
        categories = {name: TagValues.of(run, layer.name, name) for name in names}
        if len(names) == 1:
            return cls(categories, np.arange(categories[names[0]].size)[None])
        from_shards = [
            cls._in_columns(categories, {name: shard.decoded(layer.name, name) for name in names})
            for shard in run.slot_shards(layer.name)
        ]
        none = np.empty((len(names), 0), dtype=np.int64)
        return cls(categories, np.concatenate([none, *from_shards], axis=1))

    @classmethod
    def union(cls, groupings: "Sequence[ByTags]") -> "ByTags":
        """Return the groups that are in any of these, which are by the same tags."""
        names = list(groupings[0].categories)
        categories = {name: TagValues.union([grouping.categories[name] for grouping in groupings]) for name in names}
        places = [cls._in_columns(categories, grouping.columns()) for grouping in groupings]
        return cls(categories, np.concatenate(places, axis=1))

    @classmethod
    def _in_columns(cls, categories: dict[str, TagValues], columns: dict[str, Array]) -> Array:
        """Return the places of the combinations that occur in columns, each once."""
        here = cls(categories, np.stack([known.places(columns[name]) for name, known in categories.items()]))
        return np.stack(list(here.places().values()))

    def columns(self, groups: Array | slice = ALL) -> dict[str, Array]:
        return {name: self.categories[name].take(places) for name, places in self.places(groups).items()}

    def places(self, groups: Array | slice = ALL) -> dict[str, NDArray[np.int64]]:
        """Return the place of each group's value among those of a tag, for each tag."""
        rest, places = np.arange(self.size)[groups], {}
        for (name, known), joined in zip(reversed(self.categories.items()), reversed(self._joined), strict=True):
            rest, places[name] = np.divmod(joined.take(rest), max(known.size, 1))
        return dict(reversed(places.items()))

    def codes(self, block: Block) -> NDArray[np.int64]:
        if len(self.categories) == 1:  # then every value is a group
            ((name, known),) = self.categories.items()
            return known.places(block.tag(name))
        code = np.zeros(len(block), dtype=np.int64)
        for (name, known), joined in zip(self.categories.items(), self._joined, strict=True):
            code = joined.places(code * known.size + known.places(block.tag(name)))
        return code


class ByTime:
    """Bins of training time, as equal as whole steps allow."""

    def __init__(self, bins: int, until: int) -> None:
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
