"""Folds: each takes a layer's blocks one by one and keeps only what its answer needs.

All folds of a question are fed from one pass over the slots. Scores are (slots, queries), in float32 at
least: attention weights x_t . q or whatever else slots are compared by; absolute values if asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.kinds.keys import add_by_group
from dualform.query.groups import Grouping, size
from dualform.query.scan import Block

Array = NDArray[Any]
Factors = Callable[[Block], Tensor]  # (slots,): what each slot of a block counts for, not negative

_WAITING = 1 << 14  # finds at least, before they are sorted in


class Fold(Protocol):
    """Feeds on blocks and their scores."""

    def add(self, block: Block, scores: "Scores") -> None: ...


class Scores(Protocol):
    """What the slots of a block score for each query."""

    def weights(self, absolute: bool) -> Tensor:
        """(slots, queries)"""


class AttentionScores:
    """The attention weights of one block, computed when a fold first asks."""

    def __init__(self, block: Block, queries: Tensor) -> None:
        self._block, self._queries = block, queries
        self._signed: Tensor | None = None

    def weights(self, absolute: bool) -> Tensor:
        if self._signed is None:
            self._signed = self._block.keys.pair(self._queries).mT
        return self._signed.abs() if absolute else self._signed


class GivenScores:
    """Scores of all slots of a layer, as one block has them; in float64, for large ones may cancel in their sum."""

    def __init__(self, block: Block, scores: Tensor) -> None:
        self._signed = scores[torch.from_numpy(block.slots)].double()

    def weights(self, absolute: bool) -> Tensor:
        return self._signed.abs() if absolute else self._signed


@dataclass(frozen=True)
class Best:
    """The best of each cell, best first: which query, which group, which slot, what score."""

    query: Array
    group: Array
    slot: Array
    score: Array


class TopFold:
    """The k highest scores of each query in each group; of equal ones, the earlier slots."""

    def __init__(self, k: int, grouping: Grouping, queries: int, absolute: bool) -> None:
        self._k, self._grouping, self._absolute = k, grouping, absolute
        self._groups = size(grouping)
        self._cell = np.empty(0, dtype=np.int64)  # query * groups + group
        self._slot = np.empty(0, dtype=np.int64)
        self._score = np.empty(0, dtype=np.float32)
        # A later slot enters only by beating the k-th score so far, so ties go to the earlier slot.
        self._bar = torch.full((queries, self._groups), -torch.inf, dtype=torch.float64)
        self._waiting: list[tuple[Array, Array, Array]] = []  # found since the bars were raised last

    def add(self, block: Block, scores: Scores) -> None:
        codes = self._grouping.codes(block)
        weights = scores.weights(self._absolute)
        bars = self._bar.to(weights.dtype).mT[torch.from_numpy(codes)]  # (slots, queries)
        row, query = (index.numpy() for index in torch.nonzero(weights > bars, as_tuple=True))
        self._waiting.append((query * self._groups + codes[row], block.slots[row], weights[row, query].numpy()))
        if sum(len(cell) for cell, _, _ in self._waiting) > max(len(self._cell), _WAITING):
            self._merge()

    def _merge(self) -> None:
        found = [(self._cell, self._slot, self._score), *self._waiting]
        cell, slot, score = (np.concatenate(column) for column in zip(*found, strict=True))
        self._waiting = []
        kept = best_of_cells(cell, slot, score, self._k)
        self._cell, self._slot, self._score = cell[kept], slot[kept], score[kept]
        last = np.append(self._cell[1:] != self._cell[:-1], True)
        full = np.bincount(self._cell)[self._cell] >= self._k
        at = np.flatnonzero(last & full)
        self._bar.view(-1)[self._cell[at]] = torch.from_numpy(self._score[at]).double()

    def result(self) -> Best:
        self._merge()
        return Best(self._cell // self._groups, self._cell % self._groups, self._slot, self._score)


def best_of_cells(cell: Array, slot: Array, score: Array, k: int) -> Array:
    """Positions of the k best of each cell, ordered by cell, then score downwards, then slot."""
    order = np.lexsort((slot, -score, cell))
    cell = cell[order]
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    rank = np.arange(len(cell)) - np.repeat(starts, np.diff(np.append(starts, len(cell))))
    return order[rank < k]


class TotalFold:
    """The sum of scores of each query in each group, scanned: needed where absolute values are taken."""

    def __init__(self, grouping: Grouping, queries: int, absolute: bool, factors: Factors | None = None) -> None:
        self._grouping, self._absolute, self._factors = grouping, absolute, factors
        self.totals = torch.zeros(size(grouping), queries, dtype=torch.float64)
        self.seen = Visits(size(grouping))

    def add(self, block: Block, scores: Scores) -> None:
        codes = self._grouping.codes(block)
        weights = scores.weights(self._absolute)
        if self._factors:
            weights = weights * self._factors(block).to(weights.dtype)[:, None]
        add_by_group(self.totals, weights, codes)
        self.seen.add(block, codes)


class Visits:
    """How many slots each group has, and which is its first."""

    def __init__(self, groups: int) -> None:
        self.count = np.zeros(groups, dtype=np.int64)
        self.first_slot = np.full(groups, np.iinfo(np.int64).max)

    def add(self, block: Block, codes: NDArray[np.int64]) -> None:
        np.add.at(self.count, codes, block.visits)
        np.minimum.at(self.first_slot, codes, block.slots)

    def of(self, first_slots: Array) -> Array:
        """The counts of the groups whose first slots these are."""
        order = np.argsort(self.first_slot)
        return self.count[order[np.searchsorted(self.first_slot, first_slots, sorter=order)]]


class KeySumFold:
    """The sum of the keys in each group: by linearity, all totals for any query without another scan."""

    def __init__(self, grouping: Grouping, d_in: int, factors: Factors | None = None) -> None:
        self._grouping, self._factors = grouping, factors
        self.sums = torch.zeros(size(grouping), d_in, dtype=torch.float64)
        self.nonnegative = True

    def add(self, block: Block, scores: Scores) -> None:
        factors = self._factors(block) if self._factors else None
        block.keys.add_to(self.sums, self._grouping.codes(block), factors)
        self.nonnegative = self.nonnegative and block.keys.nonnegative
