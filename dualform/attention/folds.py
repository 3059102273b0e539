"""Folds over a layer's blocks: the best slots, sums over groups, when slots were seen.

Scores are (slots, queries), in float32 at least: attention weights x_t . q or whatever else slots are compared by;
absolute values if asked for. All folds of a plan share them, and they are computed when the first one asks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.kinds.keys import add_by_group
from dualform.slots import Block, Grouping

Array = NDArray[Any]
Factors = Callable[[Block], Tensor]  # (slots,): what each slot of a block counts for, not negative

_WAITING = 1 << 14  # candidates at least, before they are sorted in
_CHUNK = 4096  # stored keys scored at a time


class Scores(ABC):
    """What the slots of a block score for each query."""

    def __init__(self) -> None:
        self._block: Block | None = None
        self._signed = torch.empty(0, 0)

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the block that was looked at last."""
        return {**self.__dict__, "_block": None, "_signed": torch.empty(0, 0)}

    def of(self, block: Block, absolute: bool) -> Tensor:
        """(slots, queries)"""
        if block is not self._block:
            self._block, self._signed = block, self._compute(block)
        return self._signed.abs() if absolute else self._signed

    @abstractmethod
    def _compute(self, block: Block) -> Tensor: ...


class AttentionScores(Scores):
    """Attention weights."""

    def __init__(self, queries: Tensor) -> None:
        super().__init__()
        self._queries = queries

    def _compute(self, block: Block) -> Tensor:
        return block.keys.pair(self._queries).mT


class GivenScores(Scores):
    """Scores of all slots of a layer, computed before; in float64, for large ones may cancel in their sum."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self._scores = scores  # (slots, queries)

    def _compute(self, block: Block) -> Tensor:
        return self._scores[torch.from_numpy(block.slots)].double()


@dataclass(frozen=True)
class Best:
    """The best of each cell, best first: which query, which group, which slot, what score."""

    query: Array
    group: Array
    slot: Array
    score: Array


def best_of_cells(cell: Array, slot: Array, score: Array, k: int) -> Array:
    """Positions of the k best of each cell, ordered by cell, then score downwards, then slot."""
    order = np.lexsort((slot, -score, cell))
    cell = cell[order]
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    rank = np.arange(len(cell)) - np.repeat(starts, np.diff(np.append(starts, len(cell))))
    return order[rank < k]


class TopFold:
    """The k highest scores of each query in each group; of equal ones, the earlier slots."""

    def __init__(self, scores: Scores, k: int, grouping: Grouping, queries: int, absolute: bool) -> None:
        self._scores, self._k, self._grouping, self._absolute = scores, k, grouping, absolute
        self._groups = grouping.size
        self._cell = np.empty(0, dtype=np.int64)  # query * groups + group
        self._slot = np.empty(0, dtype=np.int64)
        self._score = np.empty(0, dtype=np.float32)
        # A later slot enters only by beating the k-th score so far, so ties go to the earlier slot.
        self._bar = torch.full((queries, self._groups), -torch.inf, dtype=torch.float64)
        self._waiting: list[tuple[Array, Array, Array]] = []  # found since the bars were raised last

    def add(self, block: Block) -> None:
        codes = self._grouping.codes(block)
        weights = self._scores.of(block, self._absolute)
        bars = self._bar.to(weights.dtype).mT[torch.from_numpy(codes)]  # (slots, queries)
        row, query = (index.numpy() for index in torch.nonzero(weights > bars, as_tuple=True))
        self._waiting.append((query * self._groups + codes[row], block.slots[row], weights[row, query].numpy()))
        if sum(len(cell) for cell, _, _ in self._waiting) > max(len(self._cell), _WAITING):
            self._sort_in()

    def _sort_in(self) -> None:
        found = [(self._cell, self._slot, self._score), *self._waiting]
        cell, slot, score = (np.concatenate(column) for column in zip(*found, strict=True))
        self._waiting = []
        kept = best_of_cells(cell, slot, score, self._k)
        self._cell, self._slot, self._score = cell[kept], slot[kept], score[kept]
        last = np.append(self._cell[1:] != self._cell[:-1], True)
        full = np.bincount(self._cell)[self._cell] >= self._k
        at = np.flatnonzero(last & full)
        self._bar.view(-1)[self._cell[at]] = torch.from_numpy(self._score[at]).double()

    def merge(self, other: "TopFold") -> None:
        self._waiting += [(other._cell, other._slot, other._score), *other._waiting]
        self._sort_in()

    def finish(self) -> Best:
        self._sort_in()
        return Best(self._cell // self._groups, self._cell % self._groups, self._slot, self._score)


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
        """The counts of the groups whose first slots these are."""
        order = np.argsort(self.first_slot)
        return self.count[order[np.searchsorted(self.first_slot, first_slots, sorter=order)]]


class TotalFold:
    """The sum of scores of each query in each group, slot by slot."""

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
            weights = weights * self._factors(block).to(weights.dtype)[:, None]
        add_by_group(self.totals, weights, codes)
        self.visits.add(block, codes)

    def merge(self, other: "TotalFold") -> None:
        self.totals += other.totals
        self.visits.merge(other.visits)

    def finish(self) -> "TotalFold":
        return self


class KeySumFold:
    """The sum of the keys in each group: by linearity, all totals for any query without another scan."""

    def __init__(self, grouping: Grouping, d_in: int, factors: Factors | None = None) -> None:
        self._grouping, self._factors = grouping, factors
        self._sums = torch.zeros(grouping.size, d_in, dtype=torch.float64)
        self.nonnegative = True

    def add(self, block: Block) -> None:
        factors = self._factors(block) if self._factors else None
        block.keys.add_to(self._sums, self._grouping.codes(block), factors)
        self.nonnegative = self.nonnegative and block.keys.nonnegative

    def merge(self, other: "KeySumFold") -> None:
        self._sums += other._sums
        self.nonnegative = self.nonnegative and other.nonnegative

    def finish(self) -> "KeySumFold":
        return self

    def totals(self, queries: Tensor) -> Tensor:
        """Sums of attention weights: (groups, queries)."""
        return self._sums @ queries.double().mT


class KeyCountFold:
    """For each stored key, how much its slots in each group count together: sizes of weights need one look at each."""

    def __init__(self, slots: Any, grouping: Grouping, factors: Factors | None) -> None:
        self._slots, self._grouping, self._factors = slots, grouping, factors
        self._counts = torch.zeros(slots.stored, grouping.size, dtype=torch.float64)

    def add(self, block: Block) -> None:
        cell = torch.from_numpy(block.key_rows * self._counts.shape[1] + self._grouping.codes(block))
        factors = self._factors(block) if self._factors else torch.ones(len(block))
        self._counts.view(-1).index_add_(0, cell, factors.double())

    def merge(self, other: "KeyCountFold") -> None:
        self._counts += other._counts

    def finish(self) -> "KeyCountFold":
        return self

    def totals(self, queries: Tensor) -> Tensor:
        """Sums of the sizes of attention weights: (groups, queries)."""
        totals = torch.zeros(self._counts.shape[1], len(queries), dtype=torch.float64)
        used = torch.nonzero(self._counts.any(dim=1)).flatten()
        for rows in used.split(_CHUNK):
            scores = self._slots.keys.weights(rows.numpy(), queries).abs_()  # (queries, keys)
            totals += (scores @ self._counts[rows].to(queries.dtype)).mT.double()
        return totals


class SeenFold:
    """Of each group how many slots there are, and from which step to which. Reads tags, no keys."""

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

    def merge(self, other: "SeenFold") -> None:
        self._count += other._count
        np.minimum(self._first, other._first, out=self._first)
        np.maximum(self._last, other._last, out=self._last)

    def finish(self) -> dict[str, Array]:
        """The groups that have slots, as columns."""
        there = np.flatnonzero(self._count)
        columns = {name: values[there] for name, values in self._grouping.columns.items()}
        return {
            **columns,
            "visits": self._count[there],
            "first_step": self._first[there],
            "last_step": self._last[there],
        }


class CountFold:
    """How many slots there are."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, block: Block) -> None:
        self._count += len(block)

    def merge(self, other: "CountFold") -> None:
        self._count += other._count

    def finish(self) -> int:
        return self._count
