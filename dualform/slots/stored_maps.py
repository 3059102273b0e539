"""Read the keys of a layer whose input maps are stored: one for each slot, unfolded.

    maps = StoredMaps(layer, shards, slot_starts, pixels)
    maps.take(slots)                # (slots, channels * taps): the patch of each, in the order of the weight's entries

Whoever asks gets keys as any others, numbered like the slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.kinds.convolution import unfolded
from dualform.slots.stored_keys import StoredKeys
from dualform.store import Layer, Shard
from dualform.store.geometry import NO_PIXEL, Geometry

Array = NDArray[Any]

_PIECE_SLOTS = 4096


@dataclass(frozen=True)
class _Passes:
    """The backward passes of one shard: where their slots and pixels begin, and the extents of their maps."""

    slot_starts: Array
    pixel_starts: Array
    extents: Array  # (passes, dimensions)


class _Places(NamedTuple):
    """Where some slots are, whose maps are of one size."""

    chosen: Array  # which of the slots that were asked for
    extents: tuple[int, ...]
    first_pixel: Array  # of each one's map, among all that are stored
    position: Array  # on it, row by row


class StoredMaps:
    """Patches of stored maps, unfolded when they are read; `pixels` are the stored rows."""

    def __init__(self, layer: Layer, shards: Sequence[Shard], slot_starts: Array, pixels: StoredKeys) -> None:
        assert layer.keys.geometry is not None
        self._layer, self._shards, self._slot_starts, self._pixels = layer, shards, slot_starts, pixels
        self._geometry: Geometry = layer.keys.geometry
        self._passes = lru_cache(maxsize=32)(self._read_passes)

    @property
    def dtype(self) -> torch.dtype:
        return self._pixels.dtype

    @property
    def dimensions(self) -> int:
        return self._geometry.dimensions

    def __len__(self) -> int:
        return int(self._slot_starts[-1])

    def take(self, index: Array) -> Tensor:
        """Return the keys of slots by their numbers: (slots, d_in)."""
        taps = np.empty((len(index), self._layer.d_in // self._layer.keys.width), dtype=np.int64)
        for places in self._find(index):
            of_map = self._geometry.taps(places.extents)[places.position]  # (slots, taps)
            taps[places.chosen] = np.where(of_map == NO_PIXEL, NO_PIXEL, of_map + places.first_pixel[:, None])
        return self._unfold(taps)

    def positions(self, index: Array) -> Array:
        """Return where on its map each slot is: (slots, dimensions)."""
        positions = np.empty((len(index), self._geometry.dimensions), dtype=np.int64)
        for places in self._find(index):
            sizes = self._geometry.positions(places.extents)
            positions[places.chosen] = np.stack(np.unravel_index(places.position, sizes), axis=1)
        return positions

    def weights(self, index: Array, queries: Tensor) -> Tensor:
        """Return the attention weights of slots by their numbers: (queries, slots)."""
        pieces = np.split(index, range(_PIECE_SLOTS, len(index), _PIECE_SLOTS))
        return torch.cat([queries @ self.take(piece).to(queries.dtype).mT for piece in pieces], dim=1)

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the keys of all slots, some at a time, with the number of the first."""
        for start in range(0, len(self), _PIECE_SLOTS):
            yield start, self.take(np.arange(start, min(start + _PIECE_SLOTS, len(self))))

    def _find(self, index: Array) -> Iterator[_Places]:
        """Yield where slots are, those of maps of one size in a shard together."""
        shard_of = np.searchsorted(self._slot_starts, index, side="right") - 1
        for shard in np.unique(shard_of).tolist():
            chosen = np.flatnonzero(shard_of == shard)
            passes, own = self._passes(shard), index[chosen] - self._slot_starts[shard]
            of_pass = np.searchsorted(passes.slot_starts, own, side="right") - 1
            for extents in np.unique(passes.extents[np.unique(of_pass)], axis=0).tolist():
                alike = (passes.extents[of_pass] == extents).all(axis=1)
                within = own[alike] - passes.slot_starts[of_pass[alike]]
                number, position = np.divmod(within, prod(self._geometry.positions(tuple(extents))))
                first = self._pixels.starts[shard] + passes.pixel_starts[of_pass[alike]] + number * prod(extents)
                yield _Places(chosen[alike], tuple(extents), first, position)

    def _read_passes(self, shard: int) -> _Passes:
        extents, pixels = self._shards[shard].maps(self._layer)
        _, slots = self._shards[shard].passes(self._layer.name)
        return _Passes(np.cumsum(slots) - slots, np.cumsum(pixels) - pixels, extents)

    def _unfold(self, taps: Array) -> Tensor:
        """Return patches of stored pixels: (slots, channels * taps)."""
        inside = taps[taps != NO_PIXEL]
        low, high = (int(inside.min()), int(inside.max())) if len(inside) else (0, -1)
        if high - low < taps.size:  # neighbours, as nearly always: all between them are read
            used, places = np.arange(low, high + 1), taps - low
        else:
            used = np.unique(inside)
            places = np.searchsorted(used, taps)
        places[taps == NO_PIXEL] = len(used)
        pixels = self._pixels.take(used)
        return unfolded(torch.cat([pixels, pixels.new_zeros(1, pixels.shape[1])]), torch.from_numpy(places))
