"""Ask questions of a layer's slots, answered by tables.

    layer.collect(Top(500, by="label"), Total(by="label"), Timeline(60))    # several in one reading

Most are about scores: attention weights, or contributions to an output. A question can be kept and asked
of many layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.attention import index
from dualform.attention.folds import AttentionScores, BestSlots, TopFold, TotalFold, Visits
from dualform.attention.plan import AttentionPlan, QueryBatch, Question, Route, Sources
from dualform.attention.totals import Sums
from dualform.dual.rebuilt import output_of
from dualform.errors import QueryError
from dualform.slots import By, checked_by, tag_names
from dualform.store import Run
from dualform.table import Table

Array = NDArray[Any]

_MAX_QUERIES = 1024  # asked at a time, so that memory does not grow with their number
_MAX_CELLS = 1 << 26  # queries times training examples with a sum each: half a gigabyte


def _check_count(count: Any, name: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise QueryError(f"{name} must be at least 1, a whole number, not {count!r}")


@dataclass(frozen=True)
class Top:
    """The k slots with the highest scores, of each query.

    Args:
        k: How many.
        by: A tag, or a tuple of them: the k highest of each group.
        per: A tag, such as "id": scores are first summed over all slots that share it, so that no training example
            comes twice.
        absolute: Whether to compare sizes.
    """

    k: int = 10
    by: By | None = None
    per: str | None = None
    absolute: bool = False

    def __post_init__(self) -> None:
        _check_count(self.k, "k")
        object.__setattr__(self, "by", None if self.by is None else checked_by(self.by))
        if not isinstance(self.per, str | None):
            raise QueryError(
                f"per is one tag, such as 'id', not {self.per!r}; groups go by several: by=('task', 'label')"
            )

    @property
    def _groups(self) -> tuple[str, ...]:
        return () if self.by is None else tag_names(self.by)

    @property
    def examples(self) -> tuple[str, ...]:
        """The tags that slots must share for their weights to be summed up: `per`, within the groups of `by`."""
        assert self.per is not None
        return tag_names((self.per, *self._groups))

    def route(self, batch: QueryBatch) -> Route:
        """Choose an index, if enough was asked for one to pay, or a scan of all slots."""
        if self.per is None or self.absolute:
            batch.sources.view.need_single_slots("sizes of single weights" if self.per else "single slots")
        if self.per is None:
            return self._to_slots(batch)
        layer, tags, queries = batch.slots.layer.name, self.examples, batch.queries
        examples = (
            batch.sources.index.examples(layer, tags, self._groups) if batch.often and not self.absolute else None
        )
        sketched = None if examples is None else examples.search.sketch.of_queries(queries)
        loose = ""
        if examples is not None and sketched is not None and not examples.search.prunes(queries, sketched, self.k):
            loose, sketched = _loose(examples.search.passed(queries, sketched, self.k)), None
        if examples is not None and sketched is not None:
            search, visits = examples.search, examples.visits
            return Route(
                f"an index of {search.sketch.keys:,} training examples, whose keys are summed up",
                lambda _: self._table_of_examples(batch, search.best(queries, sketched, self.k), visits),
            )
        grouping = batch.sources.view.grouping(layer, tags)
        return Route(
            f"a scan of all slots, summed up over {grouping.size:,} training examples{loose}",
            lambda totals: self._table_of_examples(batch, totals.best(self._groups, self.k), totals.visits),
            TotalFold(batch.scores, grouping, len(queries), self.absolute),
        )

    def _to_slots(self, batch: QueryBatch) -> Route:
        queries = batch.queries
        search = batch.sources.index.search(batch.slots.layer.name, self.by) if batch.often else None
        sketched = None if search is None else search.sketch.of_queries(queries)
        loose = ""
        if search is not None and sketched is not None and not search.prunes(queries, sketched, self.k, self.absolute):
            loose, sketched = _loose(search.passed(queries, sketched, self.k, self.absolute)), None
        if search is not None and sketched is not None:
            return Route(
                f"an index of {search.sketch.keys:,} keys",
                lambda _: self._table_of_slots(batch, search.best(queries, sketched, self.k, self.absolute)),
            )
        fold = TopFold(batch.scores, self.k, batch.grouping(self.by), len(queries), self.absolute)
        return Route(f"a scan of all slots{loose}", lambda best: self._table_of_slots(batch, best), fold)

    def _table_of_slots(self, batch: QueryBatch, best: BestSlots) -> Table:
        facts = lookup(batch, best.slot, of_slots=True)
        columns = {"query": best.query, "score": best.score, "slot": best.slot, **facts}
        if self.by is not None:
            columns |= batch.grouping(self.by).columns(best.group)
        return Table(columns)

    def _table_of_examples(self, batch: QueryBatch, best: BestSlots, visits: Visits) -> Table:
        """Return examples, with the facts of their first slots; in a merged memory, slots and steps mean nothing."""
        facts = {"slot": best.slot, **lookup(batch, best.slot)}
        if batch.sources.view.run.manifest.storage.merge:
            del facts["slot"], facts["step"]
        return Table({"query": best.query, "score": best.score, "visits": visits.of(best.slot), **facts})


def _loose(passed: float) -> str:
    return f" (an index would leave {passed:.0%} of them to be scored)"


class _Sum:
    """What totals and timelines share: sums of weights over groups, as a table."""

    @property
    def _sums(self) -> Sums:
        raise NotImplementedError

    def route(self, batch: QueryBatch) -> Route:
        """Choose the cheapest way that is exact: summed keys, counted keys, or a scan of all slots."""
        if self._sums.absolute:
            batch.sources.view.need_single_slots("sizes of single weights")
        if isinstance(self._sums.by, int):
            batch.sources.view.need_single_slots("training time")
        return self._as_table(batch, self._sums.route(batch))

    def _as_table(self, batch: QueryBatch, route: Route) -> Route:
        def answer(folded: Any) -> Table | Route:
            totals = route.answer(folded)
            if isinstance(totals, Route):
                return self._as_table(batch, totals)
            groups, count = totals.shape  # (groups, queries)
            columns = batch.grouping(self._sums.by).columns()
            repeated = {name: np.tile(values, count) for name, values in columns.items()}
            query = np.repeat(np.arange(count), groups)
            return Table({"query": query, **repeated, "total": totals.mT.reshape(-1).numpy()})

        return Route(route.how, answer, route.fold)


@dataclass(frozen=True)
class Total(_Sum):
    """The sum of scores of each query over each group of slots.

    Args:
        by: A tag, or a tuple of them; None: all slots in one group.
        absolute: Whether to sum up sizes.
        valued: Whether each attention weight is first multiplied by the size of the value it belongs to,
            |c_t| ||e_t||.
    """

    by: By | None = None
    absolute: bool = False
    valued: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", None if self.by is None else checked_by(self.by))

    @property
    def _sums(self) -> Sums:
        return Sums(self.by, self.absolute, self.valued)


@dataclass(frozen=True)
class Timeline(_Sum):
    """The sum of scores of each query over bins of training time.

    Args:
        bins: How many.
        absolute: Whether to sum up sizes.
        valued: Whether each attention weight is first multiplied by the size of the value it belongs to,
            |c_t| ||e_t||.
    """

    bins: int = 60
    absolute: bool = False
    valued: bool = False

    def __post_init__(self) -> None:
        _check_count(self.bins, "bins")

    @property
    def _sums(self) -> Sums:
        return Sums(self.bins, self.absolute, self.valued)


@dataclass(frozen=True)
class Output:
    """The layer's output by its dual form: the initial part plus attention over the slots.

    Where that is no sum over single slots, they are summed up to what they have made of the weights first.
    """

    def route(self, batch: QueryBatch) -> Route:
        """Choose a scan of all slots, or the weights that are summed up from them."""
        duals, layer, queries = batch.sources.duals, batch.asked or batch.layer, batch.queries
        fold = duals.of(layer.name).output_fold(queries)
        if fold is None:

            def of_weights(_: None) -> Tensor:
                maps = {use: rebuilt.whole for use, rebuilt in duals.rebuilt(layer.name).items()}
                return output_of(layer, maps, queries).to(queries.dtype)

            return Route("the weights, summed up from all slots", of_weights)

        def answer(attended: Tensor) -> Tensor:
            initial = output_of(layer, duals.initial(layer.name), queries)
            return (initial + attended).to(queries.dtype)

        return Route("a scan of all slots", answer, fold)


def lookup(batch: QueryBatch, slots: Array, of_slots: bool = False) -> dict[str, Array]:
    """Return the step and tags of slots; if they stand for themselves, their coefficients and positions as well."""
    run, blocks = batch.sources.view.run, batch.slots.at(slots)
    if not blocks:
        return {name: np.empty(0) for name in ("step", *run.tags)}
    order = np.argsort(np.concatenate([positions for positions, _ in blocks]))
    facts: list[dict[str, Array]] = [{"step": block.steps} for _, block in blocks]
    for fact, (_, block) in zip(facts, blocks, strict=True):
        if of_slots and run.manifest.storage.values:
            coefficient = batch.sources.duals.of(batch.layer.name).coefficient(block)
            fact |= {} if coefficient is None else {"coefficient": coefficient}
        if of_slots:
            positions = batch.slots.positions(block.slots)
            fact |= {f"slot_{name}" if name in run.tags else name: place for name, place in positions.items()}
        fact |= {tag: block.tag(tag) for tag in run.tags}
    return {name: np.concatenate([fact[name] for fact in facts])[order] for name in facts[0]}


@dataclass(eq=False, repr=False)
class Answers:
    """What can be asked about the slots of a layer, whatever their scores. Tables say which query a row belongs to."""

    _sources: Sources
    name: str
    queries: Tensor  # (queries, d_in)

    @property
    def run(self) -> Run:
        """The run that is asked."""
        return self._sources.view.run

    @property
    def slots_of(self) -> str:
        """The layer whose slots are asked about."""
        return self.name

    def top(self, k: int = 10, by: By | None = None, per: str | None = None, absolute: bool = False) -> Table:
        """Return the k highest scores: `top(10)`, `top(500, by="label")`, `top(3, per="id")`.

        Args:
            k: How many.
            by: A tag, or a tuple of them: the k highest of each group.
            per: A tag, such as "id": scores are first summed over all slots that share it.
            absolute: Whether to compare sizes.

        Returns:
            A row for each slot, or example, with query, score, slot, step, coefficient if it is a number, and tags.
        """
        table: Table = self.collect(Top(k, by, per, absolute))[0]
        return table

    def total(self, by: By | None = None, absolute: bool = False, valued: bool = False) -> Table:
        """Sum up scores over groups of slots: `total(by="label")`, `total(by=("task", "label"))`.

        Args:
            by: A tag, or a tuple of them; None: all slots in one group.
            absolute: Whether to sum up sizes.
            valued: Whether each attention weight counts |c_t| ||e_t|| times.

        Returns:
            A row for each query and group, with query, tags and total.
        """
        table: Table = self.collect(Total(by, absolute, valued))[0]
        return table

    def timeline(self, bins: int = 60, absolute: bool = False, valued: bool = False) -> Table:
        """Sum up scores over bins of training time.

        Args:
            bins: How many.
            absolute: Whether to sum up sizes.
            valued: Whether each attention weight counts |c_t| ||e_t|| times.

        Returns:
            A row for each query and bin, with query, first_step, last_step and total.
        """
        table: Table = self.collect(Timeline(bins, absolute, valued))[0]
        return table

    def collect(self, *questions: Question) -> list[Any]:
        """Answer several questions in one reading of the slots: `collect(Top(10), Total(by="label"))`."""
        portion = self._portion(questions)
        parts = [AttentionPlan(batch, questions).answers() for batch in self._batches(portion)]
        return parts[0] if len(parts) == 1 else [_joined(answers, portion) for answers in zip(*parts, strict=True)]

    def plan(self, *questions: Question) -> AttentionPlan:
        """Plan how questions would be answered: `print(layer.plan(Top(10, per="id")).explain())`."""
        return AttentionPlan(next(self._batches(self._portion(questions))), questions)

    def _portion(self, questions: Sequence[Question]) -> int:
        """Return how many queries are asked at a time: fewer, where each has a sum for every training example."""
        by = [question.examples for question in questions if isinstance(question, Top) and question.per]
        cells = max((self._sources.view.grouping(self.slots_of, examples).size for examples in by), default=0)
        return max(1, min(_MAX_QUERIES, _MAX_CELLS // max(cells, 1)))

    def _batches(self, portion: int) -> Iterator[QueryBatch]:
        """Yield the queries, so many at a time."""
        slots, asked = self._sources.view.slots(self.name), self._sources.index.sketches.asked
        often = asked[self.name] + len(self.queries) > index.FEW_QUERIES
        for start in range(0, max(1, len(self.queries)), portion):
            queries, again = self.queries[start : start + portion], asked[self.name] + start >= index.FEW_QUERIES
            yield QueryBatch(self._sources, slots, queries, AttentionScores(queries), often, again)
        asked[self.name] += len(self.queries)  # not if only a plan was asked for


def _joined(answers: Sequence[Any], portion: int) -> Any:
    """Join the answers to queries that were asked in several portions."""
    if isinstance(answers[0], Tensor):
        return torch.cat(list(answers))
    numbered = [{**table.as_arrays(), "query": table["query"] + i * portion} for i, table in enumerate(answers)]
    return Table({name: np.concatenate([columns[name] for columns in numbered]) for name in numbered[0]})
