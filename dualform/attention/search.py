"""Find the k best slots of each query and group exactly, without reading most keys.

A sketch bounds the scores of all keys. Of each group, the k slots with the highest bounds are scored by their
stored keys; the lowest of these scores is a bar that none of the k best is below. Only slots whose bounds
reach the bar are scored besides, and the best of all scored are the best of all.

**The bounds.** Keys of a trained network lie close to a few directions. Along those, B (d_in, r), a key x is x B; let
rest(x) be the length of what they leave out. For any query

    x . q  <=  (x B) . (q B) + rest(x) rest(q)

which is one product with r + 1 numbers in place of d_in, and leaves few keys that may be among the best.
It holds for any orthonormal B, so directions found from a sample of the keys will do.

Rounding: of both sides together it is at most a multiple of width times eps of |x| |q|. With it under the root of
both rests, rest(x)^2 = (1 + c) |x|^2 - |x B|^2, their product is larger by at least c |x| |q| (Cauchy-Schwarz).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.attention.folds import BestSlots, best_of_cells
from dualform.slots import Block, Grouping, KeyRows

Array = NDArray[Any]

_MAX_BOUNDS = 1 << 24  # queries times slots at a time: 64 MB in float32
_SAMPLED_KEYS = 16_384  # that the directions are found from
_ITERATIONS = 3  # in the subspace
_MIN_DIRECTIONS = 16
_ENTRIES_A_DIRECTION = 12  # of a key: directions for a sixth of a float16 key's bytes
_MAX_SKETCH_BYTES = 1 << 29
_SLACK = 16.0
_SAMPLED_QUERIES = 4  # that the share of slots which pass the bounds is measured on
_MAX_PASSED = 0.02  # of the slots: beyond it, a scan is quicker
_FEW_SLOTS = 2048  # which are scored in no time, however large a share they are
_PIECE_ROWS = 4096  # of keys in memory, sketched at a time


class Sketch:
    """`bounds(queries)`: no attention weight of a stored key is above its bound."""

    def __init__(self, directions: Tensor, rows: Tensor) -> None:
        self._directions = directions  # (d_in, r)
        self._rows = rows  # (r + 1, keys): one row for each direction, and last the rests
        self.keys, self.nbytes = rows.shape[1], rows.nbytes

    @classmethod
    def of(cls, keys: KeyRows, width: int, max_bytes: int) -> Self | None:
        """Return None if there is no room even for a coarse one, or squares of the keys are beyond what floats hold."""
        at_most = min(_MAX_SKETCH_BYTES, max_bytes) // (keys.dtype.itemsize * max(len(keys), 1)) - 1
        count = min(width, max(_MIN_DIRECTIONS, width // _ENTRIES_A_DIRECTION), at_most)
        if count < min(width, _MIN_DIRECTIONS):
            return None
        directions = _directions(keys, width, count)
        rows = torch.empty(count + 1, len(keys), dtype=keys.dtype)
        for first, some in keys.pieces():
            sketched = _sketched(some, directions)
            if sketched is None:
                return None
            rows[:, first : first + len(some)] = sketched
        return cls(directions, rows)

    def of_queries(self, queries: Tensor) -> Tensor | None:
        """Return queries as `bounds` takes them: (r + 1, queries); None if squares are beyond what floats hold."""
        return _sketched(queries, self._directions)

    def bounds(self, sketched: Tensor, absolute: bool, into: Tensor) -> None:
        """Fill (queries, keys): above all weights, or above their sizes."""
        torch.mm(sketched.mT, self._rows, out=into)
        if absolute:
            mirrored = torch.cat([-sketched[:-1], sketched[-1:]])
            torch.maximum(into, mirrored.mT @ self._rows, out=into)


def _sketched(vectors: Tensor, directions: Tensor) -> Tensor | None:
    """Return vectors along the directions, and their rest: (r + 1, vectors); None if a square is beyond floats."""
    squares, info = torch.linalg.vector_norm(vectors, dim=1).square(), torch.finfo(vectors.dtype)
    ordinary = (squares >= info.tiny**0.5) & (squares <= info.max**0.5)
    if not bool(ordinary.all()) and bool(vectors[~ordinary].any()):
        return None
    sketched = torch.empty(directions.shape[1] + 1, len(vectors), dtype=vectors.dtype)
    torch.mm(directions.mT, vectors.mT, out=sketched[:-1])
    slack = 1 + _SLACK * info.eps * vectors.shape[1]
    torch.sqrt((slack * squares - sketched[:-1].square().sum(dim=0)).clamp_min_(0), out=sketched[-1])
    return sketched


def _directions(keys: KeyRows, width: int, count: int) -> Tensor:
    """Return orthonormal directions that a sample of the keys lies close to: (width, count)."""
    index = np.unique(np.linspace(0, len(keys) - 1, min(_SAMPLED_KEYS, len(keys))).astype(np.int64))
    sample = keys.take(index)
    directions = torch.randn(width, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for _ in range(_ITERATIONS):
        directions = torch.linalg.qr((sample.mT @ (sample @ directions.to(keys.dtype))).double()).Q
    return directions.to(keys.dtype)


@dataclass(frozen=True)
class SummedKeys:
    """Keys in memory, read as stored ones are: sums over all slots of a training example."""

    rows: Tensor  # (examples, d_in)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Array) -> Tensor:
        return self.rows[torch.from_numpy(index)]

    def weights(self, index: Array, queries: Tensor) -> Tensor:
        return queries @ self.rows[torch.from_numpy(index)].mT

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(self.rows), _PIECE_ROWS):
            yield first, self.rows[first : first + _PIECE_ROWS]


@dataclass(frozen=True)
class Members:
    """The chosen slots, group by group, and the key of each."""

    slots: Array  # (slots,): by group, then in order
    rows: Tensor  # (slots,)
    starts: Array  # (groups + 1,): where each group begins

    @cached_property
    def spans(self) -> list[slice]:
        """Where the groups are that have any slots."""
        pairs = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return [slice(start, end) for start, end in pairs if end > start]

    def pick(self, bounds: Tensor, into: Tensor) -> Tensor:
        """Return the bounds of the members, out of those of all stored keys: (queries, slots)."""
        if bounds.shape[1] == len(self.rows) and self._in_order:
            return bounds
        return torch.index_select(bounds, 1, self.rows, out=into)

    @cached_property
    def _in_order(self) -> bool:
        return torch.equal(self.rows, torch.arange(len(self.rows)))


class MembersFold:
    """Collects the slots of a view by their groups."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._members: list[Array] = []  # (3, slots) each: group, slot, stored key

    def add(self, block: Block) -> None:
        self._members.append(np.stack([self._grouping.codes(block), block.slots, block.key_rows]))

    def merge(self, other: "MembersFold") -> None:
        self._members += other._members

    def finish(self) -> Members:
        none = np.empty((3, 0), dtype=np.int64)
        codes, slots, rows = np.concatenate(self._members, axis=1) if self._members else none
        order = np.lexsort((slots, codes))
        starts = np.searchsorted(codes[order], np.arange(self._grouping.size + 1))
        return Members(slots[order], torch.from_numpy(rows[order]), starts)


class _Pairs(NamedTuple):
    """Queries with members that may be among their best, and what these score."""

    query: Tensor
    member: Tensor
    score: Tensor


@dataclass(frozen=True)
class Search:
    """`best(...)` of a layer's slots, or of training examples: the k best of each group."""

    keys: KeyRows
    sketch: Sketch
    members: Members
    _passed: dict[tuple[int, bool], float] = field(default_factory=dict)  # by k and absolute, once measured

    def passed(self, queries: Tensor, sketched: Tensor, k: int, absolute: bool = False) -> float:
        """Return which share of the slots the bounds leave to be scored; measured once, on the first queries."""
        if (k, absolute) not in self._passed:
            some, slots = slice(0, _SAMPLED_QUERIES), len(self.members.slots)
            of_keys = torch.empty(len(queries[some]), self.sketch.keys, dtype=queries.dtype)
            self.sketch.bounds(sketched[:, some], absolute, of_keys)
            bounds = self.members.pick(of_keys, torch.empty(len(of_keys), slots, dtype=queries.dtype))
            bars = self._likely(queries[some], bounds, k, absolute)[1] if slots else []
            reaching = sum(int((bounds[:, s] >= bar).sum()) for s, bar in zip(self.members.spans, bars, strict=True))
            self._passed[k, absolute] = reaching / max(1, len(of_keys) * slots)
        return self._passed[k, absolute]

    def prunes(self, queries: Tensor, sketched: Tensor, k: int, absolute: bool = False) -> bool:
        """Return whether the bounds leave so few slots to be scored that this is quicker than to scan all."""
        passed = self.passed(queries, sketched, k, absolute)
        return passed <= _MAX_PASSED or passed * len(self.members.slots) <= _FEW_SLOTS

    def best(self, queries: Tensor, sketched: Tensor, k: int, absolute: bool = False) -> BestSlots:
        """Return the k best of each group; `sketched` is what `sketch.of_queries` made of the queries."""
        slots = self.members.slots
        if not len(slots):
            none = np.empty(0, dtype=np.int64)
            return BestSlots(none, none, none, np.empty(0, dtype=np.float32))
        portion = min(len(queries), max(1, _MAX_BOUNDS // max(self.sketch.keys, len(slots))))
        # Used again for each portion of the queries: to get fresh memory takes longer than to fill it.
        of_keys = torch.empty(portion, self.sketch.keys, dtype=queries.dtype)
        of_slots = torch.empty(portion, len(slots), dtype=queries.dtype)
        best = []
        for first in range(0, len(queries), portion):
            some = queries[first : first + portion]
            self.sketch.bounds(sketched[:, first : first + portion], absolute, of_keys[: len(some)])
            bounds = self.members.pick(of_keys[: len(some)], of_slots[: len(some)])
            likely, bars = self._likely(some, bounds, k, absolute)
            others = self._others(some, bounds, bars, absolute)
            query, member, score = (torch.cat(both).numpy() for both in zip(likely, others, strict=True))
            group = np.searchsorted(self.members.starts, member, side="right") - 1
            kept = best_of_cells(query * len(self.members.starts) + group, slots[member], score, k)
            best.append((query[kept] + first, group[kept], slots[member[kept]], score[kept]))
        return BestSlots(*(np.concatenate(column) for column in zip(*best, strict=True)))

    def _likely(self, queries: Tensor, bounds: Tensor, k: int, absolute: bool) -> tuple[_Pairs, list[Tensor]]:
        """Return the slots with the highest bounds, and for each group the bars they set: (queries, 1)."""
        spans = self.members.spans
        highest = [bounds[:, span].topk(min(k, span.stop - span.start)).indices + span.start for span in spans]
        member = torch.cat(highest, dim=1)
        query = torch.arange(len(queries))[:, None].expand_as(member)
        pairs = self._scored(queries, query.reshape(-1), member.reshape(-1), absolute)
        bounds.scatter_(1, member, -torch.inf)  # so that none is scored twice
        by_group = pairs.score.view(member.shape).split([of_group.shape[1] for of_group in highest], dim=1)
        return pairs, [scores.amin(dim=1, keepdim=True) for scores in by_group]

    def _others(self, queries: Tensor, bounds: Tensor, bars: list[Tensor], absolute: bool) -> _Pairs:
        """Return the slots whose bounds reach the bars, and whose scores do, too."""
        reaching = torch.empty(bounds.shape, dtype=torch.bool)
        for span, bar in zip(self.members.spans, bars, strict=True):
            torch.ge(bounds[:, span], bar, out=reaching[:, span])
        query, member = reaching.nonzero(as_tuple=True)
        pairs = self._scored(queries, query, member, absolute)
        group = np.searchsorted([span.stop for span in self.members.spans], pairs.member.numpy(), side="right")
        bar = torch.cat(bars, dim=1)[pairs.query, torch.from_numpy(group)]
        return _Pairs(*(column[pairs.score >= bar] for column in pairs))

    def _scored(self, queries: Tensor, query: Tensor, member: Tensor, absolute: bool) -> _Pairs:
        """Score pairs exactly; a key that comes several times is read once."""
        rows, place = np.unique(self.members.rows[member].numpy(), return_inverse=True)
        weights = self.keys.weights(rows, queries)[query, torch.from_numpy(place)]
        return _Pairs(query, member, weights.abs() if absolute else weights)
