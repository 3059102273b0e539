"""Store values without their zeros: where a ReLU was off the error is exactly zero, and that is about half of them.

One bit for each entry of a row says whether it was stored; those that were stand one after the other, row by row.
It costs about a nanosecond an entry, to write (in the background) and to read.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MIN_WIDTH = 64  # outputs below which it does not pay
_MAX_BYTES_LEFT = 0.9  # as a share of all bytes, or it does not pay
_SAMPLED_PIECES = 8  # to find out
_PIECE_NUMBERS = 1 << 18  # at a time, so that a training that waits for the interpreter does not wait long
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def without_zeros(blocks: Sequence[Array]) -> tuple[list[Array], list[Array]] | None:
    """Return the bits (rows, bytes) and the other entries of rows (rows, width), in blocks; None if it does not pay."""
    width, size = blocks[0].shape[1], blocks[0].itemsize
    if width < _MIN_WIDTH:
        return None
    rows = max(1, _PIECE_NUMBERS // width)
    pieces = [block[start : start + rows] for block in blocks for start in range(0, len(block), rows)]
    sample = pieces[:: -(-len(pieces) // _SAMPLED_PIECES)]  # to count in all would be to read everything twice
    stored = sum(int(np.count_nonzero(_not_zero(piece))) for piece in sample)
    numbers = sum(piece.size for piece in sample)
    if stored * size + numbers / 8 > _MAX_BYTES_LEFT * numbers * size:
        return None
    bits, entries = [], []
    for piece in pieces:
        there = _not_zero(piece)
        bits.append(np.packbits(there, axis=1))
        entries.append(piece.reshape(-1).take(np.flatnonzero(there)))
    return bits, entries


def _not_zero(piece: Array) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = piece.view(f"u{piece.itemsize}") << 1 != 0  # without the sign: there is a zero with one
    return there


def with_zeros(bits: Array, entries: Array, width: int) -> Array:
    """Return the rows with their zeros: (rows, width)."""
    there = np.unpackbits(bits, axis=1, count=width).view(np.bool_)
    rows = np.zeros(there.size, dtype=entries.dtype)
    rows[np.flatnonzero(there)] = entries  # several times quicker than by the mask itself
    return rows.reshape(there.shape)


def stored_counts(bits: Array, width: int) -> NDArray[np.int64]:
    """Return how many entries of each row are stored; raise if there are bits for more than the width."""
    if width % 8 and (bits[:, -1] & (0xFF >> width % 8)).any():
        raise ValueError(f"there are bits for more than {width} entries of a row")
    counts: NDArray[np.int64] = _ONES[bits].sum(axis=1, dtype=np.int64)
    return counts
