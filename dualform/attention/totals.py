"""Sum up attention weights over groups of slots, each in the cheapest way that is exact.

- Without absolute values, or where neither keys nor queries are negative, by linearity: the sum over a
  group is (sum of its keys) . q. Not for the first few queries: to sum their scores up takes less.
- With absolute values, where keys are stored once however often they come: every stored key is scored
  once, and counts for as much as its slots in a group do together.
- Else slot by slot, by scores that a scan for the best slots has computed anyway.

The first two keep something small that serves all later queries without another reading of the slots.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dualform.attention.folds import AttentionScores, Factors, TotalFold
from dualform.attention.plan import QueryBatch, Route
from dualform.errors import QueryError
from dualform.slots import Block, By, Grouping, Slots

_COUNTED_CELLS = 1 << 25  # stored keys times groups, beyond which slot by slot is cheaper
_SUMMED_QUERIES = 64  # which summing keys up takes no longer than, however many groups
_CHUNK_KEYS = 4096  # scored at a time


@dataclass(frozen=True)
class Sums:
    """Sums over groups; `route` decides how they are found: (groups, queries)."""

    by: By | int | None
    absolute: bool
    valued: bool

    def route(self, batch: QueryBatch) -> Route:
        if not isinstance(batch.scores, AttentionScores):
            if self.valued:
                raise QueryError("valued=True is for attention weights; these scores already count values")
            return self._slot_by_slot(batch, None)
        strengths = batch.sources.duals.of(batch.layer.name).strengths() if self.valued else None
        sums = batch.sources.index.sums.get(self._key(batch, KeySumFold))
        linear = not self.absolute or (bool((batch.queries >= 0).all()) and (sums is None or sums.nonnegative))
        if linear and (sums is not None or self._summing_pays(batch)):
            return self._by_summed_keys(batch, strengths)
        return self._by_sizes(batch, strengths) if self.absolute else self._slot_by_slot(batch, strengths)

    def _summing_pays(self, batch: QueryBatch) -> bool:
        """Return whether summing keys up is quicker than scoring all slots, for these queries or those to come.

        It takes as long as to score as many queries as there are groups. A reading takes as long as fifteen; one that
        has to train again takes longer than anything, so all later ones are spared.
        """
        groups = batch.grouping(self.by).size
        return batch.again or not batch.layer.stored or len(batch.queries) >= min(groups, _SUMMED_QUERIES)

    def _by_summed_keys(self, batch: QueryBatch, strengths: Any) -> Route:
        grouping = batch.grouping(self.by)
        how = f"keys summed up in {grouping.size:,} groups"

        def totals(sums: KeySumFold) -> Tensor | Route:
            if self.absolute and not sums.nonnegative:  # some key is negative after all: one more reading
                return self._by_sizes(batch, strengths)
            return sums.totals(batch.queries)

        fold = KeySumFold(grouping, batch.layer.d_in, strengths)
        return self._kept(batch, fold, how, totals)

    def _by_sizes(self, batch: QueryBatch, strengths: Any) -> Route:
        slots, groups = batch.slots, batch.grouping(self.by).size
        if not slots.indexed or slots.stored * groups > _COUNTED_CELLS:
            return self._slot_by_slot(batch, strengths)
        fold = KeyCountFold(slots, batch.grouping(self.by), strengths)
        how = f"each of {slots.stored:,} stored keys once, times its slots in {groups:,} groups"
        return self._kept(batch, fold, how, lambda counts: counts.totals(batch.queries))

    def _slot_by_slot(self, batch: QueryBatch, strengths: Any) -> Route:
        fold = TotalFold(batch.scores, batch.grouping(self.by), len(batch.queries), self.absolute, strengths)
        return Route("a scan of all slots", lambda fold: fold.totals, fold)

    def _kept(self, batch: QueryBatch, fold: Any, how: str, totals: Any) -> Route:
        """Answer by sums that are kept for further queries; nothing has to be read if they are there already."""
        kept, key = batch.sources.index.sums, self._key(batch, type(fold))
        if key in kept:
            return Route(f"{how}, kept from before", lambda _: totals(kept[key]))

        def keep(sums: Any) -> Tensor | Route:
            kept[key] = sums
            answer: Tensor | Route = totals(sums)
            return answer

        return Route(f"a scan, for {how}", keep, fold)

    def _key(self, batch: QueryBatch, kind: type) -> tuple[Any, ...]:
        return batch.layer.name, kind, self.by, self.valued


class KeySumFold:
    """Sums up the keys in each group: by linearity, all totals for any query without another scan."""

    def __init__(self, grouping: Grouping, d_in: int, factors: Factors | None = None) -> None:
        self._grouping, self._factors, self.d_in = grouping, factors, d_in
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
        """Return sums of attention weights: (groups, queries)."""
        return self._sums @ queries.double().mT


class KeyCountFold:
    """Counts for each stored key how much its slots in each group count together: each is then scored once."""

    def __init__(self, slots: Slots, grouping: Grouping, factors: Factors | None) -> None:
        self._slots, self._grouping, self._factors, self.d_in = slots, grouping, factors, slots.layer.d_in
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
        """Return sums of the sizes of attention weights: (groups, queries)."""
        totals = torch.zeros(self._counts.shape[1], len(queries), dtype=torch.float64)
        used = torch.nonzero(self._counts.any(dim=1)).flatten()
        for rows in used.split(_CHUNK_KEYS):
            scores = self._slots.keys.weights(rows.numpy(), queries).abs_()  # (queries, keys)
            if not bool(scores.isfinite().all()):  # beyond float32
                scores = self._slots.keys.weights(rows.numpy(), queries.double()).abs_()
            totals += (scores.double() @ self._counts[rows]).mT
        return totals
