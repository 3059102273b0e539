"""Sums of attention weights over groups of slots, each in the cheapest way that is exact.

- Without absolute values, or where neither keys nor queries are negative, by linearity: the sum over a
  group is (sum of its keys) . q.
- With absolute values, where keys are stored once however often they come: every stored key is scored
  once, and counts for as much as its slots in a group do together.
- Else slot by slot.

The first two keep something small that serves all later queries without another reading of the slots.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dualform.errors import QueryError
from dualform.query.folds import Factors, Fold, KeySumFold, TotalFold
from dualform.query.groups import By, Grouping, size
from dualform.query.inquiry import Inquiry
from dualform.query.scan import Block, Slots
from dualform.query.scope import Scope

_MOST = 1 << 25  # stored keys times groups, beyond which slot by slot is cheaper
_CHUNK = 4096  # stored keys scored at a time


class Strengths:
    """What each slot's attention weight is multiplied by: the size |c_t| ||e_t|| of what it points to."""

    def __init__(self, scope: Scope, layer: str) -> None:
        if scope.elementwise(layer):
            raise QueryError(
                f"layer {layer!r} was trained by an optimiser that divides elementwise: a slot has no single "
                "coefficient to weigh attention by. Ask for layer.contribution(...).total(...) instead"
            )
        self._use = scope.run.layers[layer].trained[0]
        self._of = scope.coefficients[self._use.parameter.name]

    def __call__(self, block: Block) -> Tensor:
        """(slots,)"""
        coefficient = torch.from_numpy(block.coefficients(self._use, self._of)).abs()
        norms: Tensor = torch.linalg.vector_norm(block.values, dim=1)
        return coefficient * norms


class KeyCountFold:
    """For each stored key, how much its slots in each group count together."""

    def __init__(self, slots: Slots, grouping: Grouping, factors: Factors | None) -> None:
        self._slots, self._grouping, self._factors = slots, grouping, factors
        self._groups = size(grouping)
        self.counts = torch.zeros(slots.stored, self._groups, dtype=torch.float64)

    def add(self, block: Block, scores: object) -> None:
        cell = torch.from_numpy(block.key_rows * self._groups + self._grouping.codes(block))
        factors = self._factors(block) if self._factors else torch.ones(len(block))
        self.counts.view(-1).index_add_(0, cell, factors.double())

    def totals(self, queries: Tensor) -> Tensor:
        """Sums of absolute attention weights: (groups, queries)."""
        totals = torch.zeros(self._groups, len(queries), dtype=torch.float64)
        used = torch.nonzero(self.counts.any(dim=1)).flatten()
        for rows in used.split(_CHUNK):
            scores = self._slots.keys.weights(rows.numpy(), queries).abs_()  # (queries, keys)
            totals += (scores @ self.counts[rows].to(queries.dtype)).mT.double()
        return totals


@dataclass(frozen=True)
class Sums:
    """Which sums are meant: `begin` says what has to be read for them, `by_query` what they are."""

    by: By | int | None
    absolute: bool
    valued: bool

    def begin(self, about: Inquiry) -> Fold | None:
        """A fold to be fed, or None if all that is needed was kept from an earlier question."""
        if about.given is not None:
            if self.valued:
                raise QueryError("valued=True is for attention weights; these scores already count values")
            return TotalFold(about.grouping(self.by), len(about.queries), self.absolute)
        way = self._way(about)
        return None if (about.layer, way, self.by, self.valued) in about.scope.kept else self._fold(way, about)

    def by_query(self, about: Inquiry, fold: Any) -> Tensor:
        """(groups, queries)"""
        if isinstance(fold, TotalFold):
            return fold.totals
        kept_sums = about.scope.kept
        if fold is not None:
            kept_sums[about.layer, type(fold), self.by, self.valued] = fold
        way = self._way(about)
        kept = kept_sums.get((about.layer, way, self.by, self.valued))
        if isinstance(kept, KeySumFold):
            return kept.sums @ about.queries.double().mT
        if isinstance(kept, KeyCountFold):
            return kept.totals(about.queries)
        # Sums of keys were hoped to do, until a key turned out to be negative: one more reading.
        second = self._fold(way, about)
        about.scan([second])
        return self.by_query(about, second)

    def _way(self, about: Inquiry) -> type:
        sums = about.scope.kept.get((about.layer, KeySumFold, self.by, self.valued))
        if not self.absolute or (bool((about.queries >= 0).all()) and (sums is None or sums.nonnegative)):
            return KeySumFold
        slots, groups = about.scope.slots(about.layer), size(about.grouping(self.by))
        return KeyCountFold if slots.indexed and slots.stored * groups <= _MOST else TotalFold

    def _fold(self, way: type, about: Inquiry) -> Fold:
        grouping, scope = about.grouping(self.by), about.scope
        strengths = Strengths(scope, about.layer) if self.valued else None
        if way is KeySumFold:
            return KeySumFold(grouping, scope.run.layers[about.layer].d_in, strengths)
        if way is KeyCountFold:
            return KeyCountFold(scope.slots(about.layer), grouping, strengths)
        return TotalFold(grouping, len(about.queries), self.absolute, strengths)
