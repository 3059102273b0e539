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
from dualform.query.folds import Best, Fold, TopFold, TotalFold, best_of_cells
from dualform.query.groups import By, size
from dualform.query.inquiry import Inquiry
from dualform.query.rebuild import OutputFold, output_of
from dualform.query.scan import Block
from dualform.query.scope import Scope
from dualform.query.totals import Sums
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
        if self.per is None:
            return None if about.search(self.k, self.by, self.absolute) else self._fold(about)
        return TotalFold(about.grouping(self.units), len(about.queries), self.absolute)

    @property
    def units(self) -> By:
        """What weights are summed over: slots that share `per`, within the groups of `by`."""
        assert self.per is not None
        by = () if self.by is None else (self.by,) if isinstance(self.by, str) else self.by
        return (self.per, *(name for name in by if name != self.per))

    def answer(self, about: Inquiry, fold: Any) -> Table:
        if self.per is not None:
            return self._summed(about, fold)
        best = fold.result() if fold else self._best(about)
        groups = about.grouping(self.by).columns
        facts = lookup(about.scope, about.layer, best.slot)
        columns = {"query": best.query, "score": best.score, "slot": best.slot, **facts}
        if self.by is not None:
            columns |= {name: values[best.group] for name, values in groups.items()}
        return Table(columns)

    def _fold(self, about: Inquiry) -> TopFold:
        return TopFold(self.k, about.grouping(self.by), len(about.queries), self.absolute)

    def _best(self, about: Inquiry) -> Best:
        """By a search; should the queries be beyond its arithmetic, by reading all slots."""
        search = about.search(self.k, self.by, self.absolute)
        best = search.best(about.queries) if search else None
        if best is None:
            fold = self._fold(about)
            about.scan([fold])
            best = fold.result()
        return best

    def _summed(self, about: Inquiry, fold: TotalFold) -> Table:
        """The best units; a unit's facts are those of its first slot."""
        units = np.flatnonzero(fold.visits)
        group = np.zeros(len(units), dtype=np.int64)
        if self.by is not None:
            columns = about.grouping(self.units).columns
            for name in self.units[1:]:
                known, code = np.unique(columns[name][units], return_inverse=True)
                group = group * len(known) + code.reshape(-1)
        score = fold.totals[units]  # (units, queries)
        unit, query = _contenders(score, group, self.k)
        cell = query * (group.max(initial=0) + 1) + group[unit]
        found = score[torch.from_numpy(unit), torch.from_numpy(query)].numpy()
        kept = best_of_cells(cell, fold.first_slot[units[unit]], found, self.k)
        unit = units[unit[kept]]
        facts = {"slot": fold.first_slot[unit], **lookup(about.scope, about.layer, fold.first_slot[unit])}
        for of_one_visit in ("coefficient", *(("slot", "step") if about.scope.run.manifest.storage.merge else ())):
            facts.pop(of_one_visit, None)
        return Table({"query": query[kept], "score": found[kept], "visits": fold.visits[unit], **facts})


def _contenders(score: Tensor, group: Array, k: int) -> tuple[Array, Array]:
    """The units that may be among the k best of their group, and for which query: few, where units are many."""
    found = []
    for number in np.unique(group):
        members = torch.from_numpy(np.flatnonzero(group == number))
        of_group = score[members]  # (members, queries)
        bar = of_group.topk(min(k, len(members)), dim=0).values[-1]  # ties with the last are sorted out later
        member, query = torch.nonzero(of_group >= bar, as_tuple=True)
        found.append(torch.stack([members[member], query]))
    both: Array = torch.cat(found, dim=1).numpy() if found else np.empty((2, 0), dtype=np.int64)
    return both[0], both[1]


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
            return output_of({part: one.whole for part, one in found.items()}, about.queries).to(about.queries.dtype)
        initial = output_of(about.scope.initial(about.layer), about.queries)
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
        part = scope.run.layers[layer].trained[0]
        of = scope.coefficients[part.parameter]
        columns["coefficient"] = column(lambda block: block.coefficients(part, of))
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
        for queries in torch.split(self.queries, portion):
            yield Inquiry(self._scope, self.name, queries)

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
