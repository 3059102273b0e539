"""Keys that come again are stored once.

A first layer sees the same examples in every epoch. Stored key rows of a layer are numbered through
all shards; a slot whose key is already there points at the old row. Rows are recognised by two 64-bit
hashes with random multipliers, which no two different rows of a run share but by a chance of one in
billions; everything is done on whole arrays, since a Python loop in the background would hold up the
training.
"""

import numpy as np
from numpy.typing import NDArray

from dualform.store.chapter import Rows
from dualform.store.files import Column

_MOST = 1 << 20  # rows remembered per layer, 24 MB; beyond it only if repeats are common
_RARE = 1 / 8  # share of repeats below which a full table is given up

Index = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class KeyPool:
    """The stored key rows of one layer: finds repeats while they are common enough to pay."""

    def __init__(self) -> None:
        self._seen: Hashes = np.empty((0, 2), dtype=np.uint64)  # sorted by the first hash
        self._row: Index = np.empty(0, dtype=np.int64)  # the stored row each belongs to
        self._multipliers: Hashes | None = None
        self._stored = 0  # key rows of this layer in all shards so far
        self._slots = 0
        self._open = True

    def columns(self, layer: str, passes: list[Rows]) -> dict[str, Column]:
        """The columns for the keys of these passes; keys not worth comparing are stored as they are."""
        prefix = f"slots/{layer}"
        keys = [rows.keys for rows in passes]
        exponents = [rows.key_exponent for rows in passes if rows.key_exponent is not None]
        if not self._open or not all(rows.may_repeat for rows in passes):
            self._stored += sum(map(len, keys))
            columns = {f"{prefix}/keys": Column(keys)}
            return columns | ({f"{prefix}/key_exponent": Column(exponents)} if exponents else {})
        all_keys = np.concatenate(keys)
        all_exponents = np.concatenate(exponents) if exponents else None
        new, index = self._find(self._hash(all_keys, all_exponents))
        columns = {f"{prefix}/keys": Column([all_keys[new]]), f"{prefix}/key_index": Column([index])}
        if all_exponents is not None:
            columns[f"{prefix}/key_exponent"] = Column([all_exponents[new]])
        return columns

    def _find(self, hashes: Hashes) -> tuple[Index, Index]:
        """Which of the rows are new, and for each the number of its stored row."""
        unique, first, inverse = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
        place = np.searchsorted(self._seen[:, 0], unique[:, 0])
        inside = np.minimum(place, max(len(self._seen) - 1, 0))
        known = (self._seen[inside] == unique).all(axis=1) if len(self._seen) else np.zeros(len(unique), bool)
        row = np.empty(len(unique), dtype=np.int64)
        row[known] = self._row[inside[known]]
        fresh = np.flatnonzero(~known)
        fresh = fresh[np.argsort(first[fresh])]  # stored in the order they came
        row[fresh] = self._stored + np.arange(len(fresh))
        self._stored += len(fresh)
        self._slots += len(hashes)
        self._remember(unique[fresh], row[fresh])
        return first[fresh], row[inverse.reshape(-1)]

    def _remember(self, hashes: Hashes, rows: Index) -> None:
        if len(self._seen) >= _MOST and self._stored > (1 - _RARE) * self._slots:
            self._open = False
            self._seen, self._row = self._seen[:0], self._row[:0]
            return
        room = max(_MOST - len(self._seen), 0) if self._stored > (1 - _RARE) * self._slots else len(rows)
        seen, row = np.concatenate([self._seen, hashes[:room]]), np.concatenate([self._row, rows[:room]])
        order = np.argsort(seen[:, 0], kind="stable")
        self._seen, self._row = seen[order], row[order]

    def _hash(self, keys: NDArray[np.generic], exponents: NDArray[np.int16] | None) -> Hashes:
        """Two sums of words times random multipliers, modulo 2**64: (rows, 2)."""
        width = keys.shape[1] * keys.itemsize
        words = np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), width)
        words = np.pad(words, ((0, 0), (0, -words.shape[1] % 8))).view(np.uint64)
        words = words ^ (words >> np.uint64(32))  # so that every bit reaches the low half
        if exponents is not None:
            words = np.concatenate([words, exponents.astype(np.uint64)[:, None]], axis=1)
        if self._multipliers is None:
            self._multipliers = np.random.default_rng().integers(
                0, 2**63, size=(2, words.shape[1]), dtype=np.uint64
            ) * np.uint64(2) + np.uint64(1)
        return np.stack([(words * m).sum(axis=1, dtype=np.uint64) for m in self._multipliers], axis=1)
