"""Some steps of a chapter whose keys and values are no bytes on a disk, but made again when they are asked for.

    part = Part(chapter, 100, 120, layers, make_again)
    part["slots/fc/keys"]               # calls make_again(part), whoever caches what that returns
    part.slots("fc"), part.tag("fc", "label")       # these are in the chapter, and cost nothing

What it is asked for, and how, is that of a shard.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import RunError
from dualform.store.schema import SLOTS, TAGS, UNTAGGED, Layer, ShardInfo, slot_tensor
from dualform.store.shard import Shard
from dualform.store.shard_file import Column

Array = NDArray[Any]

_OF_PASSES = ("pass_step", "pass_rows", "extents")  # that are stored
_SMALL = ("factors", "pass_precision")  # with an entry for each pass
_NEVER = ("key_index", "value_mask", "visits")  # ways to store less


class Part(Shard):
    """Steps [first, last) of a chapter, of the layers whose slots are not stored."""

    def __init__(
        self,
        chapter: Shard,
        first: int,
        last: int,
        layers: Mapping[str, Layer],
        make_again: "Callable[[Part], Mapping[str, Array]]",
    ) -> None:
        self._take_from(chapter.path, replace(chapter.info, first_step=first, last_step=last, same={}))
        self.before = chapter.before
        self.chapter, self._layers, self._make_again = chapter, layers, make_again

    def __contains__(self, name: str) -> bool:
        layer, column = _parsed(name)
        if layer is None or column in _OF_PASSES:
            return name in self.chapter
        if layer not in self._layers or column in _NEVER or not self.slots(layer):
            return False
        if column == "pass_precision":
            return name in self.chapter
        return column == "keys" or name in self._make_again(self)

    def __getitem__(self, name: str) -> Array:
        layer, column = _parsed(name)
        if layer is not None and column not in _OF_PASSES and name not in self._arrays:
            made = self._make_again(self)
            if name not in made:
                raise RunError(f"{self.path} has no {name}")
            return made[name]
        if name not in self._arrays:
            array = self.chapter[name]
            if layer is not None:
                array = array[self._places(layer)[0]]
            elif name.startswith((TAGS, UNTAGGED)):
                array = array[self._places(name.split("/", 1)[1].rpartition("/")[0])[1]]
            self._arrays[name] = array
        return self._arrays[name]

    def remember(self, made: Mapping[str, Array]) -> None:
        """Keep what is small of what was made again."""
        self._arrays |= {name: array for name, array in made.items() if _parsed(name)[1] in _SMALL}

    def length(self, name: str) -> int:
        """Return how many rows a tensor has."""
        return len(self[name])

    def slots(self, layer: str) -> int:
        """Return how many slots of a layer it has."""
        if slot_tensor(layer, "pass_step") not in self.chapter:
            return 0
        rows = self._places(layer)[1]
        return int(rows.stop - rows.start)

    def key_rows(self, layer: str) -> int:
        """Return how many keys of a layer it has: as many as slots, or as the pixels of its maps."""
        geometry, slots = self._layers[layer].keys.geometry, self.slots(layer)
        if geometry is None or not slots:
            return slots
        pairs = zip(self[slot_tensor(layer, "extents")].tolist(), self.passes(layer)[1].tolist(), strict=True)
        return sum(rows // max(prod(geometry.positions(tuple(sizes))), 1) * prod(sizes) for sizes, rows in pairs)

    def key_index(self, layer: Layer, stored: int) -> Array | None:
        """Return None: keys are in order, and those that come again are there again."""
        return None

    def _places(self, layer: str) -> tuple[slice, slice]:
        """Return which of the chapter's passes, and which of its slots, are in it."""
        steps, rows = self.chapter.passes(layer)
        first, last = np.searchsorted(steps, [self.info.first_step, self.info.last_step]).tolist()
        starts = np.concatenate([[0], np.cumsum(rows)])
        return slice(first, last), slice(int(starts[first]), int(starts[last]))


class StateInMemory(Shard):
    """A snapshot that is in no file: from where steps can be taken again."""

    def __init__(self, info: ShardInfo, state: Mapping[str, Column]) -> None:
        self._take_from("a snapshot in memory", info)
        self._tensors = {name: column.entry(0) for name, column in state.items()}
        self._arrays = {name: joined(column) for name, column in state.items()}
        self.has_state = True


def joined(column: Column) -> Array:
    """Return a column in one piece, which may be written to."""
    whole = column.blocks[0] if len(column.blocks) == 1 else np.concatenate(column.blocks)
    return whole if whole.flags.writeable else whole.copy()


def _parsed(name: str) -> tuple[str | None, str]:
    """Return the layer and the column of a tensor of slots; of any other: None."""
    if not name.startswith(SLOTS):
        return None, ""
    layer, _, column = name.removeprefix(SLOTS).rpartition("/")
    return layer, column
