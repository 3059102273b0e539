"""Questions to a layer's slots, and the tables that answer them.

    layer.collect(Top(500, by="label"), Total(by="label"), Timeline(60))    # several in one reading

Most are about scores: attention weights, or contributions to an output. A question can be kept and asked
of many layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.attention.examples import best_examples
from dualform.attention.folds import Best, TopFold, TotalFold
from dualform.attention.plan import QueryBatch, Route
from dualform.attention.totals import Sums
from dualform.dual.rebuilt import output_of
from dualform.errors import QueryError
from dualform.slots import Block, By
from dualform.table import Table

Array = NDArray[Any]


@dataclass(frozen=True)
class Top:
    """The k slots with the highest scores, of each query, and of each group if `by` is given.

    With `per` (say, "id") scores are first summed over all slots that share that tag, so that no
    training example comes twice.
    """

    k: int = 10
    by: By | None = None
    per: str | None = None
    absolute: bool = False

    @property
    def examples(self) -> tuple[str, ...]:
        """What weights are summed over: slots that share `per`, within the groups of `by`."""
        assert self.per is not None
        by = () if self.by is None else (self.by,) if isinstance(self.by, str) else self.by
        return (self.per, *(name for name in by if name != self.per))

    def route(self, batch: QueryBatch) -> Route:
        if self.k < 1:
            raise QueryError(f"k must be at least 1, not {self.k}")
        if self.per is None or self.absolute:
            batch.sources.view.need_single_slots("sizes of single weights" if self.per else "single slots")
        return self._to_slots(batch) if self.per is None else self._to_examples(batch)

    def _to_slots(self, batch: QueryBatch) -> Route:
        index, name = batch.sources.index, batch.layer.name
        search = index.search(name, batch.queries, self.k, self.by, self.absolute) if batch.often else None
        if search is not None:
            how = f"an index of {len(search.keys):,} keys"
            return Route(how, lambda _: self._table_of_slots(batch, search.best(batch.queries)))
        fold = TopFold(batch.scores, self.k, batch.grouping(self.by), len(batch.queries), self.absolute)
        return Route("a scan of all slots", lambda best: self._table_of_slots(batch, best), fold)

    def _to_examples(self, batch: QueryBatch) -> Route:
        use_index = batch.often and not self.absolute
        examples = batch.sources.index.examples(batch.layer.name, self.examples) if use_index else None
        if examples is not None and examples.sketch.takes(batch.queries):
            how = f"an index of {len(examples.keys):,} training examples, whose keys are summed up"
            return Route(
                how, lambda _: self._table_of_examples(batch, examples.best(batch.queries, self.k), examples.visits)
            )
        grouping = batch.grouping(self.examples)

        def answer(totals: TotalFold) -> Table:
            best = best_examples(totals, grouping, self.examples[1:], self.k)
            return self._table_of_examples(batch, best, totals.visits)

        fold = TotalFold(batch.scores, grouping, len(batch.queries), self.absolute)
        return Route(f"a scan of all slots, summed up over {grouping.size:,} training examples", answer, fold)

    def _table_of_slots(self, batch: QueryBatch, best: Best) -> Table:
        facts = lookup(batch, best.slot, with_coefficient=True)
        columns = {"query": best.query, "score": best.score, "slot": best.slot, **facts}
        if self.by is not None:
            columns |= {name: values[best.group] for name, values in batch.grouping(self.by).columns.items()}
        return Table(columns)

    def _table_of_examples(self, batch: QueryBatch, best: Best, visits: Any) -> Table:
        """An example's facts are those of its first slot; in a merged memory, slots and steps are no single visits."""
        facts = {"slot": best.slot, **lookup(batch, best.slot)}
        if batch.sources.view.run.manifest.storage.merge:
            del facts["slot"], facts["step"]
        return Table({"query": best.query, "score": best.score, "visits": visits.of(best.slot), **facts})


class _Summed:
    """What totals and timelines share: sums of weights over groups, as a table."""

    @property
    def _sums(self) -> Sums:
        raise NotImplementedError

    def route(self, batch: QueryBatch) -> Route:
        if self._sums.absolute:
            batch.sources.view.need_single_slots("sizes of single weights")
        if isinstance(self._sums.by, int):
            batch.sources.view.need_single_slots("training time")
        return self._as_table(batch, self._sums.route(batch))

    def _as_table(self, batch: QueryBatch, route: Route) -> Route:
        def answer(found: Any) -> Table | Route:
            totals = route.answer(found)
            return self._as_table(batch, totals) if isinstance(totals, Route) else self._table(batch, totals)

        return Route(route.how, answer, route.fold)

    def _table(self, batch: QueryBatch, totals: Tensor) -> Table:
        groups, count = totals.shape  # (groups, queries)
        columns = batch.grouping(self._sums.by).columns
        repeated = {name: np.tile(values, count) for name, values in columns.items()}
        query = np.repeat(np.arange(count), groups)
        return Table({"query": query, **repeated, "total": totals.mT.reshape(-1).numpy()})


@dataclass(frozen=True)
class Total(_Summed):
    """The sum of scores of each query over each group of slots; of their sizes if `absolute`.

    With `valued`, each attention weight is first multiplied by the size of the value it belongs to, |c_t| ||e_t||.
    """

    by: By | None = None
    absolute: bool = False
    valued: bool = False

    @property
    def _sums(self) -> Sums:
        return Sums(self.by, self.absolute, self.valued)


@dataclass(frozen=True)
class Timeline(_Summed):
    """The sum of scores of each query over stretches of training time."""

    bins: int = 60
    absolute: bool = False
    valued: bool = False

    @property
    def _sums(self) -> Sums:
        return Sums(self.bins, self.absolute, self.valued)


@dataclass(frozen=True)
class Output:
    """The layer's output by its dual form: the initial part plus attention over the slots.

    Where that is no sum over single slots, they are summed up to what they have made of the weights first.
    """

    def route(self, batch: QueryBatch) -> Route:
        duals, layer, queries = batch.sources.duals, batch.layer, batch.queries
        fold = duals.of(layer.name).output_fold(queries)
        if fold is None:
            return Route("the weights, summed up from all slots", lambda _: self._of_weights(batch))

        def answer(attended: Tensor) -> Tensor:
            initial = output_of(layer, duals.initial(layer.name), queries)
            return (initial + attended).to(queries.dtype)

        return Route("a scan of all slots", answer, fold)

    def _of_weights(self, batch: QueryBatch) -> Tensor:
        rebuilt = batch.sources.duals.rebuilt(batch.layer.name)
        maps = {use: found.whole for use, found in rebuilt.items()}
        return output_of(batch.layer, maps, batch.queries).to(batch.queries.dtype)


def lookup(batch: QueryBatch, slots: Array, with_coefficient: bool = False) -> dict[str, Array]:
    """Step and tags of slots; coefficients, if they are numbers."""
    run, blocks = batch.sources.view.run, batch.slots.at(slots)
    if not blocks:
        return {name: np.empty(0) for name in ("step", *run.tags)}
    order = np.argsort(np.concatenate([positions for positions, _ in blocks]))

    def column(read: Callable[[Block], Array]) -> Array:
        return np.concatenate([read(block) for _, block in blocks])[order]

    columns = {"step": column(lambda block: block.steps)}
    if with_coefficient and run.manifest.storage.values:
        dual = batch.sources.duals.of(batch.layer.name)
        found = [dual.coefficient(block) for _, block in blocks]
        numbers = [coefficient for coefficient in found if coefficient is not None]
        if numbers:
            columns["coefficient"] = np.concatenate(numbers)[order]
    return columns | {tag: column(lambda block, tag=tag: block.tag(tag)) for tag in run.tags}  # type: ignore[misc]
