"""A sketch of a layer's keys: bounds for all attention weights, at a fraction of the reading.

Keys of a trained network lie close to a few directions. Along those, B (d_in, r), a key x is x B; let rest(x)
be the length of what they leave out. For any query

    x . q  <=  (x B) . (q B) + rest(x) rest(q)

which is one product with r + 1 numbers in place of d_in, and leaves few keys that may be among the best.
It holds for any orthonormal B, so directions found from a sample of the keys will do.

Rounding: of both sides together it is at most a multiple of width times eps of |x| |q|. With it under the root of
both rests, rest(x)^2 = (1 + c) |x|^2 - |x B|^2, their product is larger by at least c |x| |q| (Cauchy-Schwarz).
"""

from typing import Self
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from dualform.slots import KeyRows

_SAMPLE = 16_384  # keys that the directions are found from
_ROUNDS = 3  # of subspace iteration
_FEWEST = 16
_SHARE = 12  # of a key's width: directions for a sixth of a float16 key's bytes
_SKETCH_BYTES = 1 << 29
_SLACK = 16.0


class Budget:
    """Bytes that what is kept for later queries may take, together; given back when it is gone."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes

    def take(self, nbytes: int, for_whom: object) -> None:
        self.left -= nbytes
        finalize(for_whom, self._give_back, nbytes)

    def _give_back(self, nbytes: int) -> None:
        self.left += nbytes


class Sketch:
    """`bounds(queries)`: no attention weight of a stored key is above its bound."""

    def __init__(self, directions: Tensor, rows: Tensor) -> None:
        self._directions = directions  # (d_in, r)
        self._rows = rows  # (r + 1, keys): one row for each direction, and last the rests

    @classmethod
    def of(cls, keys: KeyRows, width: int, budget: Budget) -> Self | None:
        """None if there is no room even for a coarse one, or if squares of the keys are beyond what floats hold."""
        at_most = min(_SKETCH_BYTES, budget.left) // (keys.dtype.itemsize * max(len(keys), 1)) - 1
        count = min(width, max(_FEWEST, width // _SHARE), at_most)
        if count < min(width, _FEWEST):
            return None
        directions = _directions(keys, width, count)
        rows = torch.empty(count + 1, len(keys), dtype=keys.dtype)
        for first, some in keys.pieces():
            if not _sketch(some, directions, rows[:, first : first + len(some)]):
                return None
        sketch = cls(directions, rows)
        budget.take(rows.nbytes, sketch)
        return sketch

    def takes(self, queries: Tensor) -> bool:
        """Whether squares of these queries are within what floats hold, so that there are bounds for them."""
        return _squares(queries) is not None

    def bounds(self, queries: Tensor, absolute: bool, into: Tensor) -> None:
        """Fill (queries, keys): above all weights, or above their sizes."""
        seen = torch.empty(len(self._rows), len(queries), dtype=queries.dtype)
        _sketch(queries, self._directions, seen)
        torch.mm(seen.mT, self._rows, out=into)
        if absolute:
            seen[:-1].neg_()
            torch.maximum(into, seen.mT @ self._rows, out=into)


def _squares(vectors: Tensor) -> Tensor | None:
    """The squared length of each; None if one is beyond what floats hold."""
    squares = torch.linalg.vector_norm(vectors, dim=1).square()
    info = torch.finfo(vectors.dtype)
    ordinary = (squares >= info.tiny**0.5) & (squares <= info.max**0.5)
    return None if not bool(ordinary.all()) and bool(vectors[~ordinary].any()) else squares


def _sketch(vectors: Tensor, directions: Tensor, into: Tensor) -> bool:
    """Fill (r + 1, vectors): along the directions, and the rest. False if a square is beyond what floats hold."""
    squares = _squares(vectors)
    if squares is None:
        return False
    torch.mm(directions.mT, vectors.mT, out=into[:-1])
    slack = 1 + _SLACK * torch.finfo(vectors.dtype).eps * vectors.shape[1]
    torch.sqrt((slack * squares - into[:-1].square().sum(dim=0)).clamp_min_(0), out=into[-1])
    return True


def _directions(keys: KeyRows, width: int, count: int) -> Tensor:
    """Orthonormal ones close to which a sample of the keys lies: (width, count)."""
    index = np.unique(np.linspace(0, len(keys) - 1, min(_SAMPLE, len(keys))).astype(np.int64))
    sample = keys.take(index)
    found = torch.randn(width, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for _ in range(_ROUNDS):
        found = torch.linalg.qr((sample.mT @ (sample @ found.to(keys.dtype))).double()).Q
    return found.to(keys.dtype)
