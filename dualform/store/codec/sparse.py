"""Values without their zeros: where a ReLU was off the error is exactly zero, and that is about half of them.

One bit for each entry of a row says whether it was stored; those that were stand one after the other, row by row.
It costs about a nanosecond an entry, to write (in the background) and to read.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_NARROW = 64  # outputs below which it is not worth the trouble
_WORTH = 0.9  # of the bytes, at most
_LOOKED_AT = 8  # pieces, to find out
_PIECE = 1 << 18  # numbers at a time, so that a training that waits for the interpreter does not wait long
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def without_zeros(blocks: Sequence[Array]) -> tuple[list[Array], list[Array]] | None:
    """The bits (rows, bytes) and the other entries of rows (rows, width), in blocks; None if it does not pay."""
    width, size = blocks[0].shape[1], blocks[0].itemsize
    if width < _NARROW:
        return None
    rows = max(1, _PIECE // width)
    pieces = [block[start : start + rows] for block in blocks for start in range(0, len(block), rows)]
    if not _pays(pieces[:: -(-len(pieces) // _LOOKED_AT)], size):
        return None
    bits, entries = [], []
    for piece in pieces:
        there = _not_zero(piece)
        bits.append(np.packbits(there, axis=1))
        entries.append(piece.reshape(-1).take(np.flatnonzero(there)))
    return bits, entries


def _pays(pieces: Sequence[Array], size: int) -> bool:
    """By some of the pieces: to look at all of them first would be to read everything twice."""
    stored = sum(int(np.count_nonzero(_not_zero(piece))) for piece in pieces)
    numbers = sum(piece.size for piece in pieces)
    return stored * size + numbers / 8 <= _WORTH * numbers * size


def _not_zero(piece: Array) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = piece.view(f"u{piece.itemsize}") << 1 != 0  # without the sign: there is a zero with one
    return there


def with_zeros(bits: Array, entries: Array, width: int) -> Array:
    """The rows that were: (rows, width)."""
    there = np.unpackbits(bits, axis=1, count=width).view(np.bool_)
    rows = np.zeros(there.size, dtype=entries.dtype)
    rows[np.flatnonzero(there)] = entries  # several times quicker than by the mask itself
    return rows.reshape(there.shape)


def stored_counts(bits: Array, width: int) -> NDArray[np.int64]:
    """How many entries of each row are stored; raises if there are bits for more than the width."""
    if width % 8 and (bits[:, -1] & (0xFF >> width % 8)).any():
        raise ValueError(f"there are bits for more than {width} entries of a row")
    counts: NDArray[np.int64] = _ONES[bits].sum(axis=1, dtype=np.int64)
    return counts
