"""Fold a layer's blocks into the best slots, sums over groups, and counts of visits.

Scores are (slots, queries), in float32 at least: attention weights x_t . q or whatever else slots are compared by;
absolute values if asked for. All folds of a plan share them, and they are computed when the first one asks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import QueryError
from dualform.kinds.keys import add_by_group
from dualform.slots import Block, ByTags, Grouping

Array = NDArray[Any]
Factors = Callable[[Block], Tensor]  # (slots,): what each slot of a block counts for, not negative

_MIN_WAITING = 1 << 14  # candidates, before they are sorted in


class Scores(Protocol):
    """What the slots of a block score for each query."""

    def of(self, block: Block, absolute: bool) -> Tensor:
        """Return them: (slots, queries)."""


@dataclass(eq=False)
class AttentionScores:
    """Attention weights."""

    _queries: Tensor
    _last: tuple[Block, Tensor] | None = None  # the block that was asked about last, and its weights

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the queries only."""
        return {"_queries": self._queries, "_last": None}

    def of(self, block: Block, absolute: bool) -> Tensor:
        if self._last is None or self._last[0] is not block:
            weights = block.keys.pair(self._queries).mT
            if not bool(weights.isfinite().all()):  # beyond float32
                weights = block.keys.pair(self._queries.double()).mT
                if not bool(weights.isfinite().all()):
                    raise QueryError("attention weights are beyond what float64 holds: scale the queries down")
            self._last = block, weights
        return self._last[1].abs() if absolute else self._last[1]


@dataclass(frozen=True, eq=False)
class ComputedScores:
    """Scores of all slots of a layer, computed before; in float64, since large ones may cancel in their sum."""

    _scores: Tensor  # (slots, queries)

    def of(self, block: Block, absolute: bool) -> Tensor:
        scores = self._scores[torch.from_numpy(block.slots)].double()
        return scores.abs() if absolute else scores


@dataclass(frozen=True)
class BestSlots:
    """The best of each cell, best first: which query, which group, which slot, what score."""

    query: Array
    group: Array
    slot: Array
    score: Array


def best_of_cells(cell: Array, slot: Array, score: Array, k: int) -> Array:
    """Return the positions of the k best of each cell, ordered by cell, then score downwards, then slot."""
    order = np.lexsort((slot, -score, cell))
    cell = cell[order]
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    rank = np.arange(len(cell)) - np.repeat(starts, np.diff(np.append(starts, len(cell))))
    return order[rank < k]


class TopFold:
    """Keeps the k highest scores of each query in each group; of equal ones, the earlier slots."""

    def __init__(self, scores: Scores, k: int, grouping: Grouping, queries: int, absolute: bool) -> None:
        self._scores, self._k, self._grouping, self._absolute = scores, k, grouping, absolute
        self._groups = grouping.size
        self._cell = np.empty(0, dtype=np.int64)  # query * groups + group
        self._slot = np.empty(0, dtype=np.int64)
        self._score = np.empty(0, dtype=np.float32)
        # A later slot enters only by beating the k-th score so far, so ties go to the earlier slot.
        self._bar = torch.full((queries, self._groups), -torch.inf, dtype=torch.float64)
        self._waiting: list[tuple[Array, Array, Array]] = []  # since the bars were raised last
        self._waiting_count = 0

    def add(self, block: Block) -> None:
        codes = self._grouping.codes(block)
        weights = self._scores.of(block, self._absolute)
        bars = self._bar.to(weights.dtype).mT[torch.from_numpy(codes)]  # (slots, queries)
        reaching = weights > bars
        if self._groups == 1 and len(block) > self._k and bool(self._bar.isneginf().any()):
            # No bar yet: of the first block all would be candidates, and sorting them takes longer than scoring.
            reaching &= weights >= weights.mT.topk(self._k).values[:, -1]
        row, query = (index.numpy() for index in torch.nonzero(reaching, as_tuple=True))
        self._waiting.append((query * self._groups + codes[row], block.slots[row], weights[row, query].numpy()))
        self._waiting_count += len(row)
        if self._waiting_count > max(len(self._cell), _MIN_WAITING):
            self._sort_in()

    def _sort_in(self) -> None:
        candidates = [(self._cell, self._slot, self._score), *self._waiting]
        cell, slot, score = (np.concatenate(column) for column in zip(*candidates, strict=True))
        self._waiting, self._waiting_count = [], 0
        kept = best_of_cells(cell, slot, score, self._k)
        self._cell, self._slot, self._score = cell[kept], slot[kept], score[kept]
        last = np.append(self._cell[1:] != self._cell[:-1], True)
        full = np.bincount(self._cell)[self._cell] >= self._k
        at = np.flatnonzero(last & full)
        self._bar.view(-1)[self._cell[at]] = torch.from_numpy(self._score[at]).double()

    def merge(self, other: "TopFold") -> None:
        self._waiting += [(other._cell, other._slot, other._score), *other._waiting]
        self._sort_in()

    def finish(self) -> BestSlots:
        self._sort_in()
        return BestSlots(self._cell // self._groups, self._cell % self._groups, self._slot, self._score)


class Visits:
    """How many slots each group has, and which is its first."""

    def __init__(self, groups: int) -> None:
        self.count = np.zeros(groups, dtype=np.int64)
        self.first_slot = np.full(groups, np.iinfo(np.int64).max)

    def add(self, block: Block, codes: NDArray[np.int64]) -> None:
        np.add.at(self.count, codes, block.visits)
        np.minimum.at(self.first_slot, codes, block.slots)

    def merge(self, other: "Visits") -> None:
        self.count += other.count
        np.minimum(self.first_slot, other.first_slot, out=self.first_slot)

    def of(self, first_slots: Array) -> Array:
        """Return the counts of the groups whose first slots these are."""
        order = np.argsort(self.first_slot)
        return self.count[order[np.searchsorted(self.first_slot, first_slots, sorter=order)]]


class TotalFold:
    """Sums up the scores of each query in each group, slot by slot."""

    def __init__(
        self, scores: Scores, grouping: Grouping, queries: int, absolute: bool, factors: Factors | None = None
    ) -> None:
        self._scores, self._grouping, self._absolute, self._factors = scores, grouping, absolute, factors
        self.totals = torch.zeros(grouping.size, queries, dtype=torch.float64)
        self.visits = Visits(grouping.size)

    def add(self, block: Block) -> None:
        codes = self._grouping.codes(block)
        weights = self._scores.of(block, self._absolute)
        if self._factors:
            weights = weights.double() * self._factors(block).double()[:, None]  # either may be tiny
        add_by_group(self.totals, weights, codes)
        self.visits.add(block, codes)

    def merge(self, other: "TotalFold") -> None:
        self.totals += other.totals
        self.visits.merge(other.visits)

    def finish(self) -> "TotalFold":
        return self

    def best(self, by: Sequence[str], k: int) -> BestSlots:
        """Return the k groups with the highest totals, within those of the tags `by`; each by its first slot."""
        examples = np.flatnonzero(self.visits.count)
        group: Array = (
            groups_of_examples(self._grouping, by, examples) if by else np.zeros(len(examples), dtype=np.int64)
        )
        first_slot = self.visits.first_slot[examples]
        score = self.totals[examples]  # (examples, queries)
        example, query = _contenders(score, group, k)
        total = score[torch.from_numpy(example), torch.from_numpy(query)].numpy()
        kept = best_of_cells(query * (group.max(initial=0) + 1) + group[example], first_slot[example], total, k)
        return BestSlots(query[kept], group[example[kept]], first_slot[example[kept]], total[kept])


def groups_of_examples(grouping: Grouping, by: Sequence[str], examples: Array) -> NDArray[np.int64]:
    """Return the group of each example, by those of its tags."""
    assert isinstance(grouping, ByTags)  # examples are slots that share a tag
    group, places = np.zeros(len(examples), dtype=np.int64), grouping.places(examples)
    for name in by:
        joined = group * grouping.categories[name].size + places[name]
        group = np.unique(joined, return_inverse=True)[1].reshape(-1)  # numbered anew, so that none grows too large
    return group


def _contenders(score: Tensor, group: Array, k: int) -> tuple[Array, Array]:
    """Return the few examples that may be among the k best of their group, and for which query."""
    pairs = []
    for number in np.unique(group):
        members = torch.from_numpy(np.flatnonzero(group == number))
        of_group = score[members]  # (members, queries)
        bar = of_group.topk(min(k, len(members)), dim=0).values[-1]  # ties with the last are sorted out later
        member, query = torch.nonzero(of_group >= bar, as_tuple=True)
        pairs.append(torch.stack([members[member], query]))
    both: Array = torch.cat(pairs, dim=1).numpy() if pairs else np.empty((2, 0), dtype=np.int64)
    return both[0], both[1]


class VisitsFold:
    """Counts the slots of each group, and finds their first and last step. Reads tags, no keys."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping, groups = grouping, grouping.size
        self._count = np.zeros(groups, dtype=np.int64)
        self._first = np.full(groups, np.iinfo(np.int64).max)
        self._last = np.full(groups, -1, dtype=np.int64)

    def add(self, block: Block) -> None:
        codes: NDArray[np.int64] = self._grouping.codes(block)
        np.add.at(self._count, codes, block.visits)
        np.minimum.at(self._first, codes, block.steps)
        np.maximum.at(self._last, codes, block.steps)

    def merge(self, other: "VisitsFold") -> None:
        self._count += other._count
        np.minimum(self._first, other._first, out=self._first)
        np.maximum(self._last, other._last, out=self._last)

    def finish(self) -> dict[str, Array]:
        """Return the groups that have slots, as columns."""
        visited = np.flatnonzero(self._count)
        return {
            **self._grouping.columns(visited),
            "visits": self._count[visited],
            "first_step": self._first[visited],
            "last_step": self._last[visited],
        }


class CountFold:
    """Counts slots."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, block: Block) -> None:
        self._count += len(block)

    def merge(self, other: "CountFold") -> None:
        self._count += other._count

    def finish(self) -> int:
        return self._count
