"""A sketch of a layer's keys: bounds for all attention weights, at a fraction of the reading.

Keys of a trained network lie close to a few directions. Along those, B (d_in, r), a key x is x B; let rest(x)
be the length of what they leave out. For any query

    x . q  <=  (x B) . (q B) + rest(x) rest(q)

which is one product with r + 1 numbers in place of d_in, and leaves few keys that may be among the best.
It holds for any orthonormal B, so directions found from a sample of the keys will do.

Rounding: of both sides together it is at most a multiple of width times eps of |x| |q|. With it under the root of
both rests, rest(x)^2 = (1 + c) |x|^2 - |x B|^2, their product is larger by at least c |x| |q| (Cauchy-Schwarz).
"""

from collections import Counter
from functools import lru_cache
from typing import Self
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from dualform.kinds import kind_of
from dualform.query.stored import KeyRows, StoredKeys, wide
from dualform.store import Run

_SAMPLE = 16_384  # keys that the directions are found from
_ROUNDS = 3  # of subspace iteration
_FEWEST = 16
_SHARE = 12  # of a key's width: directions for a sixth of a float16 key's bytes
_MOST = 1 << 29  # bytes of a sketch,
_ROOM = 900 << 20  # and of all that is kept of a run and its views
_SLACK = 16.0
_FEW = 3  # queries: to make a sketch takes as long as to read the keys for each of them


class Room:
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
    def of(cls, keys: KeyRows, width: int, room: Room) -> Self | None:
        """None if there is no room even for a coarse one, or if squares of the keys are beyond what floats hold."""
        at_most = min(_MOST, room.left) // (keys.dtype.itemsize * max(len(keys), 1)) - 1
        count = min(width, max(_FEWEST, width // _SHARE), at_most)
        if count < min(width, _FEWEST):
            return None
        directions = _directions(keys, width, count)
        rows = torch.empty(count + 1, len(keys), dtype=keys.dtype)
        for first, some in keys.pieces():
            if not _sketch(some, directions, rows[:, first : first + len(some)]):
                return None
        sketch = cls(directions, rows)
        room.take(rows.nbytes, sketch)
        return sketch

    def bounds(self, queries: Tensor, absolute: bool, into: Tensor) -> bool:
        """Fill (queries, keys): above all weights, or above their sizes. False if the queries are beyond floats."""
        seen = torch.empty(len(self._rows), len(queries), dtype=queries.dtype)
        if not _sketch(queries, self._directions, seen):
            return False
        torch.mm(seen.mT, self._rows, out=into)
        if absolute:
            seen[:-1].neg_()
            torch.maximum(into, seen.mT @ self._rows, out=into)
        return True


def _sketch(vectors: Tensor, directions: Tensor, into: Tensor) -> bool:
    """Fill (r + 1, vectors): along the directions, and the rest. False if a square is beyond what floats hold."""
    squares = torch.linalg.vector_norm(vectors, dim=1).square()
    info = torch.finfo(vectors.dtype)
    ordinary = (squares >= info.tiny**0.5) & (squares <= info.max**0.5)
    if not bool(ordinary.all()) and bool(vectors[~ordinary].any()):
        return False
    torch.mm(directions.mT, vectors.mT, out=into[:-1])
    slack = 1 + _SLACK * info.eps * vectors.shape[1]
    torch.sqrt((slack * squares - into[:-1].square().sum(dim=0)).clamp_min_(0), out=into[-1])
    return True


class Sketches:
    """Of the layers of a run, for all its views: each is made when its layer has been asked more than a few queries."""

    def __init__(self, run: Run) -> None:
        self._run, self.room = run, Room(_ROOM)
        self._asked: Counter[str] = Counter()
        self.of = lru_cache(maxsize=None)(self._make)

    def pay(self, layer: str, queries: int) -> bool:
        """Whether to make one for these queries, after those before: it takes as long as several readings."""
        self._asked[layer] += queries
        return self._asked[layer] > _FEW

    def _make(self, layer: str) -> Sketch | None:
        found = self._run.layers[layer]
        if not kind_of(found).vectors:
            return None
        return Sketch.of(StoredKeys(self._run, found, wide(self._run)), found.d_in, self.room)


def _directions(keys: KeyRows, width: int, count: int) -> Tensor:
    """Orthonormal ones close to which a sample of the keys lies: (width, count)."""
    index = np.unique(np.linspace(0, len(keys) - 1, min(_SAMPLE, len(keys))).astype(np.int64))
    sample = keys.take(index)
    found = torch.randn(width, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for _ in range(_ROUNDS):
        found = torch.linalg.qr((sample.mT @ (sample @ found.to(keys.dtype))).double()).Q
    return found.to(keys.dtype)
