"""Stream a layer's chosen slots from the memory maps in blocks, a few thousand at a time.

    slots = Slots(run, layer)
    for block in slots.stream(slots.chapters(selection), selection):
        block.keys, block.values, block.steps, block.tag("label")

What is not asked for is not read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import NotRecorded
from dualform.kinds import Keys, kind_of
from dualform.slots.numbers import SlotNumbers
from dualform.slots.selection import Selection
from dualform.slots.stored_keys import KeyRows, StoredKeys
from dualform.slots.stored_maps import StoredMaps
from dualform.store import Layer, Run, Shard, Use
from dualform.store.codec.float16 import TORCH, unpack
from dualform.store.schema import slot_tensor

Array = NDArray[Any]

DIMENSIONS = ("z", "y", "x")  # of maps; of those with fewer, the last ones
_BLOCK_NUMBERS = 1 << 21  # keys and values of a block together: 8 MB in float32
_KEPT_PIECES = 32  # shards of a layer whose steps are cached: 16 bytes a slot


def keys_only(run: Run) -> str:
    """Say why a run has neither values nor coefficients."""
    merge = run.manifest.storage.merge
    return f"this run holds keys only (it was recorded with {f'merge={merge!r}' if merge else 'values=False'})"


def keys_dtype(run: Run) -> torch.dtype:
    """Return the precision of all products with a run's keys: at least float32."""
    return torch.float64 if run.manifest.storage.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class _Piece:
    """A layer's slots in one shard."""

    shard: Shard
    first_place: int  # of its slots among those of all shards
    first_key: int
    first_pass: int
    key_index: Array | None  # (slots,): the number of each slot's key among all stored ones; None: they are in order
    steps: Array  # (slots,)
    passes: Array  # (slots,): number of the backward pass within the shard


class PassRows(NamedTuple):
    """Where the slots of one backward pass are."""

    shard: int  # its number among those with slots of the layer
    rows: slice


NO_ROWS = PassRows(-1, slice(0, 0))


class Slots:
    """All slots of a layer, by chapter: those of its shards that have any. In a precision of at least float32.

    Where several processes recorded, each shard of each process is a chapter.
    """

    splits = True  # chapters can be read apart, in any order

    def __init__(self, run: Run, layer: Layer, dtype: torch.dtype | None = None) -> None:
        self.run, self.layer, self.dtype = run, layer, dtype or keys_dtype(run)
        self._key_dtype = torch.int64 if layer.keys.index else self.dtype
        self._shards = run.slot_shards(layer.name)
        self._numbers = SlotNumbers(self._shards, layer.name)
        self._place_starts = np.cumsum([0, *(shard.slots(layer.name) for shard in self._shards)])
        self._row_starts = np.cumsum([0, *(shard.key_rows(layer.name) for shard in self._shards)])  # as they are stored
        self._key_starts = self._place_starts if layer.keys.geometry else self._row_starts
        self._piece = lru_cache(maxsize=_KEPT_PIECES)(self._load_piece)
        self._masks: dict[int, NDArray[np.bool_]] = {}  # of the shards asked for last, one of each process
        self._masks_of: Selection | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a description; whoever unpickles it opens the run."""
        return Slots, (self.run, self.layer, self.dtype)

    def __len__(self) -> int:
        return int(self._place_starts[-1])

    @cached_property
    def keys(self) -> KeyRows:
        stored = torch.int32 if self.layer.keys.index else TORCH[self.run.manifest.storage.dtype]
        rows = StoredKeys(self.layer, self._shards, self._row_starts, stored, self._key_dtype)
        return StoredMaps(self.layer, self._shards, self._place_starts, rows) if self.layer.keys.geometry else rows

    def positions(self, slots: Array) -> dict[str, Array]:
        """Return where on the map of its example each slot is, by the name of the dimension; of no map: nothing."""
        if not isinstance(self.keys, StoredMaps):
            return {}
        positions = self.keys.positions(self._numbers.places(slots))
        return dict(zip(DIMENSIONS[-self.keys.dimensions :], positions.T, strict=True))

    @property
    def map_positions(self) -> set[tuple[int, ...]]:
        """The numbers of positions, along each dimension, that maps of this layer have; none: there are no maps."""
        geometry = self.layer.keys.geometry
        if geometry is None:
            return set()
        extents = (np.unique(shard.maps(self.layer)[0], axis=0).tolist() for shard in self._shards)
        return {geometry.positions(tuple(sizes)) for of_shard in extents for sizes in of_shard}

    @property
    def stored(self) -> int:
        """Stored keys: fewer than slots where keys that come again are stored once."""
        return int(self._key_starts[-1])

    @property
    def indexed(self) -> bool:
        """Whether every slot says which stored key is its own."""
        return bool(self._shards) and all(self._piece(i).key_index is not None for i in range(len(self._shards)))

    def chapters(self, selection: Selection, since: int = 0) -> list[int]:
        """Return the numbers of chapters with steps from `since` on, and before the selection ends."""
        infos = [shard.info for shard in self._shards]
        return [i for i, info in enumerate(infos) if since < info.last_step and info.first_step < selection.until]

    def first_step(self, chapter: int) -> int:
        """Return the first step of a chapter."""
        return self._shards[chapter].info.first_step

    def stream(self, chapters: Iterable[int], selection: Selection, since: int = 0) -> Iterator["Block"]:
        """Yield the chosen slots of chapters, from step `since` on; a block's keys are valid until the next one."""
        values = self.layer.d_out if self.run.manifest.storage.values else 0
        width = self.layer.d_in if self.layer.keys.geometry else self.layer.keys.width
        size = max(1, _BLOCK_NUMBERS // (width + values))
        # Keys take the place of those before: fresh memory takes longer than filling it, and scatters the heap.
        buffer = torch.empty(size, self.layer.keys.width, dtype=self._key_dtype)
        for chapter in chapters:
            piece = self._piece(chapter)
            chosen = np.flatnonzero(self._chosen(chapter, selection) & (piece.steps >= since))
            for start in range(0, len(chosen), size):
                rows = chosen[start : start + size]
                # a slice reads the map in place, an index array copies
                contiguous = rows[-1] - rows[0] + 1 == len(rows)
                yield Block(self, piece, slice(rows[0], rows[-1] + 1) if contiguous else rows, buffer)

    def at(self, slots: Array) -> "list[tuple[Array, Block]]":
        """Return blocks of just these slots, each with the positions of its rows in `slots`."""
        places = self._numbers.places(slots)
        chapters = np.searchsorted(self._place_starts, places, side="right") - 1
        blocks = []
        for chapter in np.unique(chapters).tolist():
            positions, piece = np.flatnonzero(chapters == chapter), self._piece(chapter)
            blocks.append((positions, Block(self, piece, places[positions] - piece.first_place)))
        return blocks

    def numbers(self, places: Array) -> Array:
        """Return the numbers of slots by their places."""
        return self._numbers.of(places)

    def passes(self, shard: Shard) -> "dict[int, list[PassRows]]":
        """Return where the backward passes in a shard are, by their step, in order."""
        return self._passes(
            number for number in self._within(shard) if self._shards[number].info.rank == shard.info.rank
        )

    def passes_of_all(self, shard: Shard) -> "dict[int, list[PassRows]]":
        """Return the same of all processes, in the chapter that a shard is of."""
        return self._passes(self._within(shard))

    def _within(self, shard: Shard) -> "list[int]":
        """Return the numbers of the shards with steps of a chapter: one of each process, or parts of it."""
        first, last = shard.info.first_step, shard.info.last_step
        infos = enumerate(other.info for other in self._shards)
        return [number for number, info in infos if first <= info.first_step and info.last_step <= last]

    def _passes(self, numbers: "Iterable[int]") -> "dict[int, list[PassRows]]":
        passes: dict[int, list[PassRows]] = {}
        for number in numbers:
            steps, counts = self._shards[number].passes(self.layer.name)
            ends = np.cumsum(counts)
            for step, start, end in zip(steps, ends - counts, ends, strict=True):
                passes.setdefault(int(step), []).append(PassRows(number, slice(int(start), int(end))))
        return passes

    def block(self, rows: "PassRows") -> "Block":
        """Return the slots of a backward pass."""
        return Block(self, self._piece(rows.shard), rows.rows)

    def chosen_blocks(self, passes: "Sequence[PassRows]", selection: Selection) -> "list[Block]":
        """Return the chosen slots of some backward passes, a block for each pass that has any."""
        chosen = [(n, rows.start + np.flatnonzero(self._chosen(n, selection)[rows])) for n, rows in passes]
        return [Block(self, self._piece(number), rows) for number, rows in chosen if len(rows)]

    def chooses_all(self, passes: "Sequence[PassRows]", selection: Selection) -> bool:
        """Return whether all slots of some backward passes are chosen."""
        return all(self._chosen(number, selection)[rows].all() for number, rows in passes)

    def _chosen(self, chapter: int, selection: Selection) -> NDArray[np.bool_]:
        """Return which rows of a shard a selection contains."""
        if selection is not self._masks_of or len(self._masks) > self.run.manifest.world:
            self._masks, self._masks_of = {}, selection
        if chapter not in self._masks:
            piece = self._piece(chapter)
            places = np.arange(piece.first_place, piece.first_place + len(piece.steps))
            numbers = partial(self._numbers.of, places)
            self._masks[chapter] = selection.mask(piece.shard, self.layer.name, piece.steps, numbers)
        return self._masks[chapter]

    def _load_piece(self, chapter: int) -> _Piece:
        shard = self._shards[chapter]
        steps, counts = shard.passes(self.layer.name)
        # keys are numbered through the shards of one process
        first_of_rank = next(i for i, other in enumerate(self._shards) if other.info.rank == shard.info.rank)
        before = int(self._key_starts[first_of_rank])
        index = shard.key_index(self.layer, int(self._key_starts[chapter + 1]) - before)
        passes = np.repeat(np.arange(len(counts)), counts)
        first_place, first_key = int(self._place_starts[chapter]), int(self._key_starts[chapter])
        return _Piece(
            shard, first_place, first_key, self._first_pass(chapter),
            index + before if before and index is not None else index, steps[passes], passes,
        )  # fmt: skip

    def _first_pass(self, chapter: int) -> int:
        """Return the number of a shard's first pass among those that other processes have in the same chapter."""
        first_step = self._shards[chapter].info.first_step
        earlier = (shard for shard in self._shards[:chapter] if shard.info.first_step == first_step)
        return sum(shard.length(slot_tensor(self.layer.name, "pass_step")) for shard in earlier)


@dataclass(eq=False)
class Block:
    """Some slots of one shard; what is not asked for is not read."""

    _of: Slots
    _piece: _Piece
    _rows: slice | Array
    _buffer: Tensor | None = None  # that keys may be read into

    @property
    def dtype(self) -> torch.dtype:
        return self._of.dtype

    @cached_property
    def slots(self) -> Array:
        """The number of each among all slots of the layer."""
        return self._of.numbers(self._places)

    @property
    def _places(self) -> Array:
        rows = self._rows
        within = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return within + self._piece.first_place

    def is_beside(self, other: "Block") -> bool:
        """Return whether both are of one shard."""
        return self._piece.shard is other._piece.shard

    def __len__(self) -> int:
        return self._rows.stop - self._rows.start if isinstance(self._rows, slice) else len(self._rows)

    @property
    def steps(self) -> Array:
        return self._piece.steps[self._rows]

    @cached_property
    def keys(self) -> Keys:
        layer = self._of.layer
        if self._piece.key_index is not None or layer.keys.geometry is not None:
            return kind_of(layer).keys(layer, self._of.keys.take(self.key_rows))
        packed = torch.from_numpy(self._piece.shard[slot_tensor(layer.name, "keys")][self._rows])
        buffer = torch.empty(packed.shape, dtype=self._of.keys.dtype) if self._buffer is None else self._buffer
        rows = self._scaled(buffer[: len(packed)].copy_(packed), "key")
        return kind_of(layer).keys(layer, rows)

    @property
    def visits(self) -> Array:
        """How many slots were summed up in each of these: 1, unless the memory is merged."""
        visits = self._piece.shard.visits(self._of.layer.name)
        return np.ones(len(self), dtype=np.int64) if visits is None else visits[self._rows]

    @property
    def key_rows(self) -> Array:
        """The number of each slot's key among the stored ones."""
        if self._piece.key_index is not None:
            return self._piece.key_index[self._rows]
        return self._places - self._piece.first_place + self._piece.first_key

    @cached_property
    def values(self) -> Tensor:
        """(slots, d_out)"""
        layer, shard = self._of.layer, self._piece.shard
        if slot_tensor(layer.name, "values") not in shard:
            raise NotRecorded(f"{keys_only(self._of.run)}: no values")
        return self._scaled(torch.from_numpy(shard.values(layer, self._rows)).to(self.dtype), "value")

    def _scaled(self, rows: Tensor, what: str) -> Tensor:
        """Return rows as they were before they were divided by powers of two."""
        exponents = self._piece.shard.exponents(self._of.layer.name, what)
        own = None if exponents is None else exponents[self._rows]
        return rows if own is None or not own.any() else unpack(rows, own, self.dtype)

    def product(self, use: Use, values: Tensor) -> Tensor:
        """Return what values (slots, d_out) at these slots add up to in a parameter: E^T X, (d_out, width)."""
        return self.keys.of(use).outer(values)

    def factors(self, use: Use) -> NDArray[np.float64]:
        """Return how much of each slot's backward pass was in the gradient of this parameter."""
        column, name = self._of.layer.trained.index(use), slot_tensor(self._of.layer.name, "factors")
        factors: NDArray[np.float64] = self._piece.shard[name][:, column]
        return factors[self._piece.passes[self._rows]]

    @property
    def pass_number(self) -> int:
        """The number of its backward pass within the chapter, of all processes, if it is of one pass."""
        return self._piece.first_pass + self._pass_within

    @property
    def _pass_within(self) -> int:
        return int(self._piece.passes[self._rows][0])

    @property
    def rounded(self) -> bool:
        """Whether any pass of its shard was rounded to half precision."""
        return self._piece.shard.pass_precision(self._of.layer.name) is not None

    @property
    def precision(self) -> int:
        """The code of the precision that its backward pass was rounded to, if it is of one pass."""
        codes = self._piece.shard.pass_precision(self._of.layer.name)
        return 0 if codes is None else int(codes[self._pass_within])

    def tag(self, name: str) -> Array:
        return self._piece.shard.decoded(self._of.layer.name, name, self._rows)
