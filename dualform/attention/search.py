"""The k best slots of each query and group, found without looking at most keys, and exactly.

A sketch bounds the scores of all keys. Of each group, the k slots with the highest bounds are scored by their
stored keys; the lowest of these scores is a bar that none of the k best is below. Only slots whose bounds
reach the bar are scored besides, and the best of all scored are the best of all.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.attention.folds import Best, best_of_cells
from dualform.attention.sketch import Sketch
from dualform.slots import Block, Grouping, KeyRows

Array = NDArray[Any]

_BOUNDS = 1 << 24  # queries times slots at a time: 64 MB in float32


@dataclass(frozen=True)
class Members:
    """The chosen slots, group by group, and the stored key of each."""

    slots: Array  # (slots,): by group, then in order
    rows: Tensor  # (slots,)
    starts: Array  # (groups + 1,): where each group begins

    @cached_property
    def spans(self) -> list[slice]:
        """Where the groups are that have any slots."""
        pairs = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return [slice(start, end) for start, end in pairs if end > start]

    def pick(self, bounds: Tensor, into: Tensor) -> Tensor:
        """Of the bounds of all stored keys, those of the members: (queries, slots)."""
        if bounds.shape[1] == len(self.rows) and self._in_order:
            return bounds
        return torch.index_select(bounds, 1, self.rows, out=into)

    @cached_property
    def _in_order(self) -> bool:
        return torch.equal(self.rows, torch.arange(len(self.rows)))

    def groups(self, members: Array) -> Array:
        """The group of each."""
        return np.searchsorted(self.starts, members, side="right") - 1


class MembersFold:
    """Collects the slots of a view by their groups."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._found: list[Array] = []  # (3, slots) each: group, slot, stored key

    def add(self, block: Block) -> None:
        self._found.append(np.stack([self._grouping.codes(block), block.slots, block.key_rows]))

    def merge(self, other: "MembersFold") -> None:
        self._found += other._found

    def finish(self) -> Members:
        none = np.empty((3, 0), dtype=np.int64)
        codes, slots, rows = np.concatenate(self._found, axis=1) if self._found else none
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
    """`best(queries)` of a layer's slots: the k best of each group. The queries are those that the sketch `takes`."""

    keys: KeyRows
    sketch: Sketch
    members: Members
    k: int
    absolute: bool

    def best(self, queries: Tensor) -> Best:
        if not len(self.members.slots):
            none = np.empty(0, dtype=np.int64)
            return Best(none, none, none, np.empty(0, dtype=np.float32))
        portion = min(len(queries), max(1, _BOUNDS // max(len(self.keys), len(self.members.slots))))
        # Used again for each portion of the queries, for to be handed fresh memory takes longer than to fill it.
        of_keys = torch.empty(portion, len(self.keys), dtype=queries.dtype)
        of_slots = torch.empty(portion, len(self.members.slots), dtype=queries.dtype)
        found: list[Best] = []
        for first in range(0, len(queries), portion):
            some = queries[first : first + portion]
            self.sketch.bounds(some, self.absolute, of_keys[: len(some)])
            bounds = self.members.pick(of_keys[: len(some)], of_slots[: len(some)])
            found.append(self._best(some, bounds, first))
        columns = ([getattr(best, name) for best in found] for name in ("query", "group", "slot", "score"))
        return Best(*(np.concatenate(column) for column in columns))

    def _best(self, queries: Tensor, bounds: Tensor, first: int) -> Best:
        """Of some queries, `first` and on, with the bounds (queries, slots) of the slots in the members' order."""
        likely, bars = self._likely(queries, bounds)
        others = self._others(queries, bounds, bars)
        query, member, score = (torch.cat(both).numpy() for both in zip(likely, others, strict=True))
        slot, group = self.members.slots[member], self.members.groups(member)
        kept = best_of_cells(query * len(self.members.starts) + group, slot, score, self.k)
        return Best(query[kept] + first, group[kept], slot[kept], score[kept])

    def _likely(self, queries: Tensor, bounds: Tensor) -> tuple[_Pairs, list[Tensor]]:
        """The slots with the highest bounds, and for each group the bars they set: (queries, 1)."""
        spans = self.members.spans
        found = [bounds[:, span].topk(min(self.k, span.stop - span.start)).indices + span.start for span in spans]
        member = torch.cat(found, dim=1)
        query = torch.arange(len(queries))[:, None].expand_as(member)
        pairs = self._scored(queries, query.reshape(-1), member.reshape(-1))
        bounds.scatter_(1, member, -torch.inf)  # so that none is scored twice
        by_group = pairs.score.view(member.shape).split([one.shape[1] for one in found], dim=1)
        return pairs, [scores.amin(dim=1, keepdim=True) for scores in by_group]

    def _others(self, queries: Tensor, bounds: Tensor, bars: list[Tensor]) -> _Pairs:
        """Those whose bounds reach the bars and whose scores do, too."""
        reaching = torch.empty(bounds.shape, dtype=torch.bool)
        for span, bar in zip(self.members.spans, bars, strict=True):
            torch.ge(bounds[:, span], bar, out=reaching[:, span])
        pairs = self._scored(queries, *reaching.nonzero(as_tuple=True))
        group = np.searchsorted([span.stop for span in self.members.spans], pairs.member.numpy(), side="right")
        bar = torch.cat(bars, dim=1)[pairs.query, torch.from_numpy(group)]
        return _Pairs(*(column[pairs.score >= bar] for column in pairs))

    def _scored(self, queries: Tensor, query: Tensor, member: Tensor) -> _Pairs:
        """Exactly; a key that comes several times is read once."""
        rows, place = np.unique(self.members.rows[member].numpy(), return_inverse=True)
        weights = self.keys.weights(rows, queries)[query, torch.from_numpy(place)]
        return _Pairs(query, member, weights.abs() if self.absolute else weights)
