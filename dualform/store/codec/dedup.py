"""Store keys that come again once.

A first layer sees the same examples in every epoch. Stored key rows of a layer are numbered through
all shards; a slot whose key is already there points at the old row. Rows are recognised by two 64-bit
hashes with random multipliers, which no two different rows of a run share but by a chance of one in
billions; everything is done on whole arrays, since a Python loop in the background would hold up the
training.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.chapter import Rows, known
from dualform.store.schema import slot_tensor
from dualform.store.shard_file import Column, neighbours_joined

_MAX_ROWS = 1 << 20  # remembered per layer, 24 MB; beyond it only if repeats are common
_MIN_REPEATS = 1 / 8  # share of slots below which a full table is given up
_PIECE_BYTES = 1 << 20  # hashed at a time

Array = NDArray[Any]
Index = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class KeyPool:
    """The stored key rows of one layer: finds repeats while they are common enough to pay."""

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty((0, 2), dtype=np.uint64)  # sorted by the first hash
        self._rows: Index = np.empty(0, dtype=np.int64)  # the stored row each belongs to
        self._multipliers: Hashes | None = None
        self._stored = 0  # key rows of this layer in all shards so far
        self._slots = 0
        self._open = True

    def columns(self, layer: str, passes: list[Rows]) -> dict[str, Column]:
        """Return the columns for the keys of these passes; keys that cannot repeat are stored as they are."""
        keys = neighbours_joined([known(rows.keys) for rows in passes])
        exponents = [rows.key_exponent for rows in passes if rows.key_exponent is not None]
        columns = {"key_exponent": np.concatenate(exponents)} if exponents else {}
        if not self._open or not all(rows.may_repeat for rows in passes):
            self._stored += sum(map(len, keys))
        else:
            new, columns["key_index"] = self._find(self._hash(keys, columns.get("key_exponent")))
            mask = np.zeros(sum(map(len, keys)), dtype=bool)
            mask[new] = True
            masks = np.split(mask, np.cumsum([len(block) for block in keys])[:-1])
            # blocks that are all new stay as they are, uncopied
            keys = [block if chosen.all() else block[chosen] for block, chosen in zip(keys, masks, strict=True)]
            if exponents:
                columns["key_exponent"] = columns["key_exponent"][new]
        stored = {"keys": Column(keys), **{name: Column([array]) for name, array in columns.items()}}
        return {slot_tensor(layer, name): column for name, column in stored.items()}

    def recall(self, keys: Array, exponents: Array | None, slots: int | None) -> None:
        """Take in a sealed shard's key rows when a run is resumed.

        Args:
            keys: The stored rows.
            exponents: What they were divided by, if they were.
            slots: How many slots had an index into them; None: keys were stored as they came.
        """
        rows = self._stored + np.arange(len(keys))
        self._stored += len(keys)
        if slots is not None and self._open:
            self._slots += slots
            self._remember(self._hash([keys], exponents), rows)

    def _find(self, hashes: Hashes) -> tuple[Index, Index]:
        """Return which of the rows are new, and for each row the number of its stored one."""
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        ordered = hashes[order]
        differs = np.ones(len(order), dtype=bool)  # from the one before
        differs[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        unique, first = ordered[differs], order[differs]
        place = np.searchsorted(self._hashes[:, 0], unique[:, 0])
        inside = np.minimum(place, max(len(self._hashes) - 1, 0))
        known = (self._hashes[inside] == unique).all(axis=1) if len(self._hashes) else np.zeros(len(unique), bool)
        row = np.empty(len(unique), dtype=np.int64)
        row[known] = self._rows[inside[known]]
        fresh = np.flatnonzero(~known)
        fresh = fresh[np.argsort(first[fresh])]  # stored in the order they came
        row[fresh] = self._stored + np.arange(len(fresh))
        self._stored += len(fresh)
        self._slots += len(hashes)
        self._remember(unique[fresh], row[fresh])
        index = np.empty(len(hashes), dtype=np.int64)
        index[order] = row[np.cumsum(differs) - 1]
        return first[fresh], index

    def _remember(self, hashes: Hashes, rows: Index) -> None:
        if len(self._hashes) >= _MAX_ROWS and self._stored > (1 - _MIN_REPEATS) * self._slots:
            self._open = False
            self._hashes, self._rows = self._hashes[:0], self._rows[:0]
            return
        room = max(_MAX_ROWS - len(self._hashes), 0) if self._stored > (1 - _MIN_REPEATS) * self._slots else len(rows)
        hashes, rows = np.concatenate([self._hashes, hashes[:room]]), np.concatenate([self._rows, rows[:room]])
        order = np.argsort(hashes[:, 0], kind="stable")
        self._hashes, self._rows = hashes[order], rows[order]

    def _hash(self, keys: list[Array], exponents: Array | None) -> Hashes:
        """Return two sums of words times random multipliers, modulo 2**64: (rows, 2)."""
        width = -(-keys[0].shape[1] * keys[0].itemsize // 8)
        if self._multipliers is None:
            self._multipliers = np.random.default_rng().integers(
                0, 2**63, size=(2, width + 1), dtype=np.uint64
            ) * np.uint64(2) + np.uint64(1)
        # Piece by piece, so that whatever is in between stays in the processor's cache.
        rows = _PIECE_BYTES // max(8 * width, 1) + 1
        pieces = [block[i : i + rows] for block in keys for i in range(0, len(block), rows)]
        hashes = np.empty((sum(map(len, keys)), 2), dtype=np.uint64)
        end = 0
        for piece in pieces:
            start, end = end, end + len(piece)
            np.einsum("nw,hw->nh", _words(piece), self._multipliers[:, 1:], out=hashes[start:end])
        if exponents is not None:
            hashes += exponents.astype(np.uint64)[:, None] * self._multipliers[:, 0]
        return hashes


def _words(rows: Array) -> Hashes:
    """Return the bytes of rows as 64-bit words: (rows, words)."""
    content = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.shape[1] * rows.itemsize)
    if content.shape[1] % 8:
        content = np.pad(content, ((0, 0), (0, -content.shape[1] % 8)))
    words = content.view(np.uint64)
    return words ^ (words >> np.uint64(32))  # so that every bit reaches the low half
