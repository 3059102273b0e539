"""Read the stored key rows of a layer, numbered through all shards: one after the other, or some by their number.

Fresh memory costs more than filling it, so rows are unpacked a thousand at a time into one that is used again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.store import Layer, Shard
from dualform.store.codec.float16 import power_of_two, unpack
from dualform.store.schema import slot_tensor

Array = NDArray[Any]

_UNPACKED_ROWS = 1024  # at a time: 3 MB of width 800


class KeyRows(Protocol):
    """Keys that are rows of numbers, wherever they are."""

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def take(self, index: Array) -> Tensor:
        """Return rows by their numbers: (rows, d_in)."""

    def weights(self, index: Array, queries: Tensor) -> Tensor:
        """Return the attention weights of rows by their numbers, ascending: (queries, rows)."""

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows, some at a time, with the number of the first; a piece is valid until the next one."""


class StoredKeys:
    """Rows of numbers, or of indices, read as `dtype`; `starts` says which row each shard begins with."""

    def __init__(
        self, layer: Layer, shards: Sequence[Shard], starts: Array, stored: torch.dtype, dtype: torch.dtype
    ) -> None:
        self._layer, self._shards, self.starts, self._stored, self.dtype = layer, shards, starts, stored, dtype
        self._name = slot_tensor(layer.name, "keys")

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, index: Array) -> Tensor:
        packed = torch.empty(len(index), self._layer.keys.width, dtype=self._stored)
        order = np.argsort(index, kind="stable")
        exponents, back = self._gather(index[order], packed), np.argsort(order)
        return unpack(packed[torch.from_numpy(back)], exponents[back], self.dtype)

    def weights(self, index: Array, queries: Tensor) -> Tensor:
        weights = torch.empty(len(queries), len(index), dtype=queries.dtype)
        packed = torch.empty(min(_UNPACKED_ROWS, len(index)), self._layer.keys.width, dtype=self._stored)
        buffer = torch.empty(packed.shape, dtype=queries.dtype)
        for start in range(0, len(index), _UNPACKED_ROWS):
            numbers = index[start : start + _UNPACKED_ROWS]
            exponents = self._gather(numbers, packed)
            rows = buffer[: len(numbers)].copy_(packed[: len(numbers)])
            torch.mm(queries, rows.mT, out=weights[:, start : start + _UNPACKED_ROWS])
            scale(weights[:, start : start + _UNPACKED_ROWS], exponents)
        return weights

    def _gather(self, index: Array, into: Tensor) -> Array:
        """Copy packed rows by their numbers, ascending, and return their exponents."""
        exponents = np.zeros(len(index), dtype=np.int16)
        ends = np.searchsorted(index, self.starts)
        for number in np.flatnonzero(np.diff(ends)).tolist():
            rows, powers = self._shard(number)
            here = slice(ends[number], ends[number + 1])
            within = index[here] - self.starts[number]
            torch.index_select(rows, 0, torch.from_numpy(within), out=into[here])
            if powers is not None:
                exponents[here] = powers[within]
        return exponents

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        buffer = torch.empty(min(_UNPACKED_ROWS, len(self)), self._layer.keys.width, dtype=self.dtype)
        for number, first in enumerate(self.starts[:-1].tolist()):
            packed, powers = self._shard(number)
            for start in range(0, len(packed), _UNPACKED_ROWS):
                some = packed[start : start + _UNPACKED_ROWS]
                rows = buffer[: len(some)].copy_(some)
                if powers is not None:
                    scale(rows.mT, powers[start : start + _UNPACKED_ROWS])
                yield first + start, rows

    def _shard(self, number: int) -> tuple[Tensor, Array | None]:
        """Return the packed rows of a shard, and their exponents."""
        shard = self._shards[number]
        return torch.from_numpy(shard[self._name]), shard.exponents(self._layer.name, "key")


def scale(weights: Tensor, exponent: Array) -> None:
    """Multiply the weights (queries, rows) by the powers of two that the rows were divided by, in place."""
    if exponent.any():
        weights *= torch.from_numpy(power_of_two(exponent))
