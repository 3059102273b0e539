"""Questions to a layer's slots, and the tables that answer them.

    layer.collect(Top(500, by="label"), Total(by="label"), Timeline(60))    # several in one reading

Most are about scores: attention weights, or contributions to an output. A question can be kept and asked
of many layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import QueryError
from dualform.query.folds import Best, Fold, TopFold, TotalFold
from dualform.query.groups import By, size
from dualform.query.inquiry import Inquiry
from dualform.query.rebuild import OutputFold, output_of
from dualform.query.scan import Block
from dualform.query.scope import Scope
from dualform.query.totals import Sums
from dualform.query.units import Units, best_units
from dualform.table import Table

Array = NDArray[Any]

_QUERIES = 1024  # asked at a time, so that memory does not grow with their number
_CELLS = 1 << 26  # queries times training examples with a sum each: half a gigabyte


class Question(Protocol):
    """Something to be asked of a layer: a fold to be fed, and an answer to be made of it."""

    def begin(self, about: Inquiry) -> Fold | None:
        """None: the answer needs no scan."""

    def answer(self, about: Inquiry, fold: Any) -> Any: ...


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

    def begin(self, about: Inquiry) -> Fold | None:
        if self.k < 1:
            raise QueryError(f"k must be at least 1, not {self.k}")
        if self.per is None or self.absolute:
            about.scope.need_single_slots("sizes of single weights" if self.per else "single slots")
        shorter = about.search(self.k, self.by, self.absolute) if self.per is None else self._units(about)
        return None if shorter else self._fold(about)

    @property
    def units(self) -> tuple[str, ...]:
        """What weights are summed over: slots that share `per`, within the groups of `by`."""
        assert self.per is not None
        by = () if self.by is None else (self.by,) if isinstance(self.by, str) else self.by
        return (self.per, *(name for name in by if name != self.per))

    def answer(self, about: Inquiry, fold: Any) -> Table:
        if self.per is None:
            return self._of_slots(about, self._best_slots(about, fold))
        return self._of_units(about, *self._best_units(about, fold))

    def _best_slots(self, about: Inquiry, fold: TopFold | None) -> Best:
        """By a search, if no fold was fed; should the queries be beyond its arithmetic, all slots are read."""
        search = None if fold else about.search(self.k, self.by, self.absolute)
        best: Best = (search and search.best(about.queries)) or (fold or self._read(about)).result()
        return best

    def _best_units(self, about: Inquiry, fold: TotalFold | None) -> tuple[Best, Array]:
        """In the same way; and how many slots each has."""
        units = None if fold else self._units(about)
        best = units and units.search(self.k).best(about.queries)
        if units and best:
            return best, units.seen.of(best.slot)
        read = fold or self._read(about)
        best = best_units(read, about.grouping(self.units), self.units[1:], self.k)
        return best, read.seen.of(best.slot)

    def _units(self, about: Inquiry) -> Units | None:
        return None if self.absolute else about.units(self.units)

    def _fold(self, about: Inquiry) -> Any:
        if self.per is None:
            return TopFold(self.k, about.grouping(self.by), len(about.queries), self.absolute)
        return TotalFold(about.grouping(self.units), len(about.queries), self.absolute)

    def _read(self, about: Inquiry) -> Any:
        fold = self._fold(about)
        about.scan([fold])
        return fold

    def _of_slots(self, about: Inquiry, best: Best) -> Table:
        facts = lookup(about.scope, about.layer, best.slot)
        columns = {"query": best.query, "score": best.score, "slot": best.slot, **facts}
        if self.by is not None:
            columns |= {name: values[best.group] for name, values in about.grouping(self.by).columns.items()}
        return Table(columns)

    def _of_units(self, about: Inquiry, best: Best, visits: Array) -> Table:
        """A unit's facts are those of its first slot."""
        facts = {"slot": best.slot, **lookup(about.scope, about.layer, best.slot)}
        for of_one_visit in ("coefficient", *(("slot", "step") if about.scope.run.manifest.storage.merge else ())):
            facts.pop(of_one_visit, None)
        return Table({"query": best.query, "score": best.score, "visits": visits, **facts})


class _Summed:
    """What totals and timelines share: sums of weights over groups, as a table."""

    @property
    def _sums(self) -> Sums:
        raise NotImplementedError

    def begin(self, about: Inquiry) -> Fold | None:
        if self._sums.absolute:
            about.scope.need_single_slots("sizes of single weights")
        if isinstance(self._sums.by, int):
            about.scope.need_single_slots("training time")
        return self._sums.begin(about)

    def answer(self, about: Inquiry, fold: Any) -> Table:
        by_query = self._sums.by_query(about, fold)
        groups, count = by_query.shape  # (groups, queries)
        columns = about.grouping(self._sums.by).columns
        repeated = {name: np.tile(values, count) for name, values in columns.items()}
        query = np.repeat(np.arange(count), groups)
        return Table({"query": query, **repeated, "total": by_query.mT.reshape(-1).numpy()})


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

    Where coefficients are matrices, slots are summed up to what they have made of the weights first.
    """

    def begin(self, about: Inquiry) -> Fold | None:
        if about.scope.elementwise(about.layer):
            return None
        return OutputFold(about.scope.run.layers[about.layer], about.queries, about.scope.coefficients)

    def answer(self, about: Inquiry, fold: Any) -> Tensor:
        if fold is None:
            found = about.scope.rebuilt(about.layer)
            whole = {use: one.whole for use, one in found.items()}
            return output_of(about.scope.run.layers[about.layer], whole, about.queries).to(about.queries.dtype)
        initial = output_of(about.scope.run.layers[about.layer], about.scope.initial(about.layer), about.queries)
        result: Tensor = (initial + fold.output).to(about.queries.dtype)
        return result


def lookup(scope: Scope, layer: str, slots: Array) -> dict[str, Array]:
    """Step, coefficient if it is a number, and tags of slots."""
    blocks = scope.slots(layer).at(slots)
    if not blocks:
        return {name: np.empty(0) for name in ("step", *scope.run.tags)}
    order = np.argsort(np.concatenate([positions for positions, _ in blocks]))

    def column(read: Callable[[Block], Array]) -> Array:
        return np.concatenate([read(block) for _, block in blocks])[order]

    columns = {"step": column(lambda block: block.steps)}
    if scope.run.manifest.storage.values and not scope.elementwise(layer):
        use = scope.run.layers[layer].trained[0]
        of = scope.coefficients[use.parameter.name]
        with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
            columns["coefficient"] = of.at(columns["step"]) * column(lambda block: block.factors(use))
    return columns | {tag: column(lambda block, tag=tag: block.tag(tag)) for tag in scope.run.tags}  # type: ignore[misc]


def _joined(answers: Sequence[Any], portion: int) -> Any:
    """The answers to queries that were asked in several portions, as if asked at once."""
    if len(answers) == 1:
        return answers[0]
    if isinstance(answers[0], Tensor):
        return torch.cat(list(answers))
    numbered = [{**t.as_arrays(), "query": t["query"] + i * portion} for i, t in enumerate(answers)]
    return Table({name: np.concatenate([columns[name] for columns in numbered]) for name in numbered[0]})


class Answers:
    """What can be asked about the slots of a layer, whatever their scores. Tables say which query a row belongs to."""

    def __init__(self, scope: Scope, layer: str, queries: Tensor) -> None:
        self.name = layer
        self.queries = queries  # (queries, d_in)
        self._scope = scope

    def top(self, k: int = 10, by: By | None = None, per: str | None = None, absolute: bool = False) -> Table:
        """The k highest scores: `top(10)`, `top(500, by="label")`, `top(3, per="id")`."""
        table: Table = self._ask(Top(k, by, per, absolute))
        return table

    def total(self, by: By | None = None, absolute: bool = False, valued: bool = False) -> Table:
        """Scores summed over groups of slots: `total(by="label")`, `total(by=("task", "label"))`.

        With `absolute`, sizes are summed; with `valued`, each attention weight counts |c_t| ||e_t|| times.
        """
        table: Table = self._ask(Total(by, absolute, valued))
        return table

    def timeline(self, bins: int = 60, absolute: bool = False, valued: bool = False) -> Table:
        """Scores summed over stretches of training time."""
        table: Table = self._ask(Timeline(bins, absolute, valued))
        return table

    def collect(self, *questions: Question) -> list[Any]:
        """Several answers in one reading of the slots."""
        portion = self._portion(questions)
        parts = [self._collect(questions, about) for about in self._inquiries(portion)]
        return [_joined(answers, portion) for answers in zip(*parts, strict=True)]

    def _inquiries(self, portion: int) -> Iterator[Inquiry]:
        """The queries, so many at a time."""
        often = self._scope.sketches.pay(self.name, len(self.queries))
        for queries in torch.split(self.queries, portion):
            yield Inquiry(self._scope, self.name, queries, often=often)

    def _portion(self, questions: Sequence[Question]) -> int:
        """How many queries are asked at a time: fewer, where each has a sum for every training example."""
        by = [question.units for question in questions if isinstance(question, Top) and question.per]
        cells = max((size(self._scope.grouping(self.name, units)) for units in by), default=0)
        return max(1, min(_QUERIES, _CELLS // max(cells, 1)))

    def _collect(self, questions: Sequence[Question], about: Inquiry) -> list[Any]:
        folds = [question.begin(about) for question in questions]
        about.scan([fold for fold in folds if fold is not None])
        return [question.answer(about, fold) for question, fold in zip(questions, folds, strict=True)]

    def _ask(self, question: Question) -> Any:
        return self.collect(question)[0]
