"""Slots in blocks: a layer's chosen slots, streamed from the memory maps a few thousand at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import NotRecorded
from dualform.query.coefficients import ParameterCoefficients, keys_only
from dualform.query.keys import DenseKeys, Keys, OneHotKeys
from dualform.query.selection import Selection, decoded
from dualform.query.stored import StoredKeys, wide, with_keys
from dualform.store import Layer, Part, Run, Shard
from dualform.store.codec.float16 import unpack

Array = NDArray[Any]

_BLOCK_NUMBERS = 1 << 21  # keys and values of a block together: 8 MB in float32
_PIECES = 32  # shards of a layer whose steps are kept at hand: 16 bytes a slot


@dataclass(frozen=True)
class _Piece:
    """A layer's slots in one shard."""

    shard: Shard
    first_slot: int
    first_key: int
    steps: Array  # (slots,)
    passes: Array  # (slots,): number of the backward pass within the shard


class Slots:
    """All slots of a layer. `scan` yields the chosen ones in blocks, in order, in a precision of at least float32."""

    def __init__(self, run: Run, layer: Layer, dtype: torch.dtype | None = None) -> None:
        self.run, self.layer = run, layer
        self.dtype = dtype or wide(run)
        self._key_shards = with_keys(run, layer)
        self.keys = StoredKeys(run, layer, self.dtype)
        slots = [s.slots(layer.name) for s in self._key_shards]
        self._slot_starts = np.cumsum([0, *slots])
        self._piece = lru_cache(maxsize=_PIECES)(self._load_piece)
        self._mask: tuple[int, Selection, NDArray[np.bool_]] | None = None  # of the shard asked for last

    def __len__(self) -> int:
        return int(self._slot_starts[-1])

    @property
    def stored(self) -> int:
        """Stored keys: fewer than slots where keys that come again are stored once."""
        return len(self.keys)

    @property
    def indexed(self) -> bool:
        """Whether every slot says which stored key is its own."""
        name = f"slots/{self.layer.name}/key_index"
        return bool(self._key_shards) and all(name in shard for shard in self._key_shards)

    def scan(self, selection: Selection, since: int = 0) -> Iterator["Block"]:
        """The slots of a selection, from step `since` on. The keys of a block are good until the next one comes."""
        values = self.layer.d_out if self.run.manifest.storage.values else 0
        size = max(1, _BLOCK_NUMBERS // (self.layer.key_width + values))
        # Keys take the place of those before: fresh memory takes longer than filling it, and scatters the heap.
        room = None if self.layer.one_hot else torch.empty(size, self.layer.d_in, dtype=self.dtype)
        for number, shard in enumerate(self._key_shards):
            if shard.info.last_step <= since or shard.info.first_step >= selection.until:
                continue
            piece = self._piece(number)
            chosen = np.flatnonzero(self._chosen(number, selection) & (piece.steps >= since))
            for start in range(0, len(chosen), size):
                rows = chosen[start : start + size]
                # a slice reads the map in place, an index array copies
                contiguous = rows[-1] - rows[0] + 1 == len(rows)
                yield Block(self, piece, slice(rows[0], rows[-1] + 1) if contiguous else rows, room)

    def at(self, slots: Array) -> "list[tuple[Array, Block]]":
        """Blocks of just these slots, each with the positions of its rows in `slots`."""
        numbers = np.searchsorted(self._slot_starts, slots, side="right") - 1
        found = []
        for number in np.unique(numbers):
            positions = np.flatnonzero(numbers == number)
            piece = self._piece(int(number))
            found.append((positions, Block(self, piece, slots[positions] - piece.first_slot)))
        return found

    def pass_rows(self, shard: Shard) -> dict[int, list[slice]]:
        """The rows of each backward pass in a shard, by its step, in order."""
        found: dict[int, list[slice]] = {}
        if shard in self._key_shards:
            steps, counts = shard.passes(self.layer.name)
            ends = np.cumsum(counts)
            for step, start, end in zip(steps, ends - counts, ends, strict=True):
                found.setdefault(int(step), []).append(slice(int(start), int(end)))
        return found

    def block(self, shard: Shard, rows: slice | Array) -> "Block":
        """Some rows of a shard."""
        return Block(self, self._piece(self._key_shards.index(shard)), rows)

    def chosen_blocks(self, shard: Shard, passes: Sequence[slice], selection: Selection) -> "list[Block]":
        """The chosen slots of some backward passes in a shard, a block for each pass that has any."""
        if not passes:
            return []
        mask = self._chosen(self._key_shards.index(shard), selection)
        chosen = [rows.start + np.flatnonzero(mask[rows]) for rows in passes]
        return [self.block(shard, rows) for rows in chosen if len(rows)]

    def _chosen(self, number: int, selection: Selection) -> NDArray[np.bool_]:
        """Which rows of a shard a selection means."""
        kept = self._mask
        if kept is None or kept[0] != number or kept[1] is not selection:
            piece = self._piece(number)
            mask = selection.mask(piece.shard, self.layer.name, piece.steps, piece.first_slot)
            self._mask = kept = number, selection, mask
        return kept[2]

    def _load_piece(self, number: int) -> _Piece:
        shard = self._key_shards[number]
        steps, counts = shard.passes(self.layer.name)
        shard.check_indices(self.layer, int(self.keys.starts[number + 1]))
        passes = np.repeat(np.arange(len(counts)), counts)
        return _Piece(shard, int(self._slot_starts[number]), int(self.keys.starts[number]), steps[passes], passes)


class Block:
    """Some slots of one shard; what is not asked for is not read."""

    def __init__(self, slots: Slots, piece: _Piece, rows: slice | Array, room: Tensor | None = None) -> None:
        self._of, self._piece, self._rows, self._room = slots, piece, rows, room
        self._prefix = f"slots/{slots.layer.name}"
        self.wide = slots.dtype

    @cached_property
    def slots(self) -> Array:
        rows = self._rows
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return numbers + self._piece.first_slot

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def steps(self) -> Array:
        return self._piece.steps[self._rows]

    @cached_property
    def keys(self) -> Keys:
        """(slots, d_in)"""
        if self._of.layer.one_hot:
            index = torch.from_numpy(self._piece.shard[f"{self._prefix}/keys"][self._rows, 0].astype(np.int64))
            return OneHotKeys(index, self._of.layer.d_in)
        if f"{self._prefix}/key_index" in self._piece.shard:
            return DenseKeys(self._of.keys.take(self.key_rows))
        packed = self._piece.shard[f"{self._prefix}/keys"][self._rows]
        return DenseKeys(self._unpacked(packed, "key", None if self._room is None else self._room[: len(packed)]))

    @property
    def visits(self) -> Array:
        """How many slots were summed up in each of these: 1, unless the memory is merged."""
        visits = self._piece.shard.visits(self._of.layer.name)
        return np.ones(len(self), dtype=np.int64) if visits is None else visits[self._rows]

    @property
    def key_rows(self) -> Array:
        """The number of each slot's key among the stored ones."""
        name = f"{self._prefix}/key_index"
        if name in self._piece.shard:
            return self._piece.shard[name][self._rows]
        return self.slots - self._piece.first_slot + self._piece.first_key

    @cached_property
    def values(self) -> Tensor:
        """(slots, d_out)"""
        if f"{self._prefix}/values" not in self._piece.shard:
            raise NotRecorded(f"{keys_only(self._of.run)}: no values")
        return self._unpacked(self._piece.shard.values(self._of.layer, self._rows), "value")

    def _unpacked(self, rows: Array, what: str, room: Tensor | None = None) -> Tensor:
        exponents = self._piece.shard.exponents(self._of.layer.name, what)
        packed = torch.from_numpy(rows) if room is None else room.copy_(torch.from_numpy(rows))
        return unpack(packed, None if exponents is None else exponents[self._rows], self.wide)

    def product(self, part: Part, values: Tensor) -> Tensor:
        """What values (slots, units) at these slots add up to in a parameter: E^T X, of a bias the sum of E."""
        return values.sum(dim=0) if part.columns is None else self.keys.outer(values, slice(*part.columns))

    def factors(self, part: Part) -> NDArray[np.float64]:
        """How much of each slot's backward pass was in the gradient of this parameter."""
        column = self._of.layer.trained.index(part)
        factors: NDArray[np.float64] = self._piece.shard[f"{self._prefix}/factors"][:, column]
        return factors[self._piece.passes[self._rows]]

    def coefficients(self, part: Part, of: ParameterCoefficients) -> NDArray[np.float64]:
        """What each slot counts for in this parameter: the step's coefficient times the pass' factor."""
        with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
            return of.at(self.steps) * self.factors(part)

    def tag(self, name: str) -> Array:
        return decoded(self._piece.shard, self._of.layer.name, name, self._rows)
