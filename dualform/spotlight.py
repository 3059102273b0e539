"""Spotlights: the answers to queries, per layer, as tables a person can read.

    spotlight = memory.attend(model, images)
    layer = spotlight["layers.2"]
    layer.top(10)                 # the training slots with the highest attention weights
    layer.total(by="label")       # attention summed over groups of slots
    layer.output()                # the layer's output, from the slots alone

Each call reads the slots once; `collect` answers several questions in one reading. A question can be
kept and asked of many layers: `Top(500, by="label")`, `Total(by="label")`, `Timeline(60)`, `Output()`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import QueryError, UnknownName
from dualform.query.folds import Fold, TopFold, TotalFold, best_of_cells
from dualform.query.groups import By, size
from dualform.query.rebuild import OutputFold, initial_output
from dualform.query.scan import Block
from dualform.query.scope import Scope, scan
from dualform.query.totals import Sums
from dualform.store import Layer
from dualform.table import Table

Array = NDArray[Any]

_QUERIES = 1024  # asked at a time, so that memory does not grow with their number
_CELLS = 1 << 26  # queries times training examples with a sum each: half a gigabyte


class Question(Protocol):
    """Something to be asked of a layer: a fold to be fed, and an answer to be made of it."""

    def begin(self, scope: Scope, layer: str, queries: Tensor) -> Fold | None:
        """None: the answer needs no scan."""

    def answer(self, scope: Scope, layer: str, queries: Tensor, fold: Any) -> Any: ...


@dataclass(frozen=True)
class Top:
    """The k slots with the highest attention weights, of each query, and of each group if `by` is given.

    With `per` (say, "id") weights are first summed over all slots that share that tag, so that no
    training example comes twice.
    """

    k: int = 10
    by: By | None = None
    per: str | None = None
    absolute: bool = False

    def begin(self, scope: Scope, layer: str, queries: Tensor) -> Fold:
        if self.k < 1:
            raise QueryError(f"k must be at least 1, not {self.k}")
        if self.per is None or self.absolute:
            scope.need_single_slots("sizes of single weights" if self.per else "single slots")
        if self.per is None:
            return TopFold(self.k, scope.grouping(layer, self.by), len(queries), self.absolute)
        return TotalFold(scope.grouping(layer, self.units), len(queries), self.absolute)

    @property
    def units(self) -> By:
        """What weights are summed over: slots that share `per`, within the groups of `by`."""
        assert self.per is not None
        by = () if self.by is None else (self.by,) if isinstance(self.by, str) else self.by
        return (self.per, *(name for name in by if name != self.per))

    def answer(self, scope: Scope, layer: str, queries: Tensor, fold: Any) -> Table:
        if self.per is not None:
            return self._summed(scope, layer, fold)
        best = fold.result()
        groups = scope.grouping(layer, self.by).columns
        facts = lookup(scope, layer, best.slot)
        columns = {"query": best.query, "score": best.score, "slot": best.slot, **facts}
        if self.by is not None:
            columns |= {name: values[best.group] for name, values in groups.items()}
        return Table(columns)

    def _summed(self, scope: Scope, layer: str, fold: TotalFold) -> Table:
        """The best units; a unit's facts are those of its first slot."""
        units = np.flatnonzero(fold.visits)
        group = np.zeros(len(units), dtype=np.int64)
        if self.by is not None:
            _, group = np.unique(
                np.stack([scope.grouping(layer, self.units).columns[n] for n in self.units[1:]])[:, units],
                axis=1,
                return_inverse=True,
            )
        score = fold.totals[units]  # (units, queries)
        unit, query = _contenders(score, group.reshape(-1), self.k)
        cell = query * (group.max(initial=0) + 1) + group.reshape(-1)[unit]
        found = score[torch.from_numpy(unit), torch.from_numpy(query)].numpy()
        kept = best_of_cells(cell, fold.first_slot[units[unit]], found, self.k)
        unit = units[unit[kept]]
        facts = {"slot": fold.first_slot[unit], **lookup(scope, layer, fold.first_slot[unit])}
        for of_one_visit in ("coefficient", *(("slot", "step") if scope.run.manifest.storage.merge else ())):
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

    def begin(self, scope: Scope, layer: str, queries: Tensor) -> Fold | None:
        if self._sums.absolute:
            scope.need_single_slots("sizes of single weights")
        if isinstance(self._sums.by, int):
            scope.need_single_slots("training time")
        return self._sums.begin(scope, layer, queries)

    def answer(self, scope: Scope, layer: str, queries: Tensor, fold: Any) -> Table:
        by_query = self._sums.by_query(scope, layer, queries, fold)
        groups, count = by_query.shape  # (groups, queries)
        columns = scope.grouping(layer, self._sums.by).columns
        repeated = {name: np.tile(values, count) for name, values in columns.items()}
        query = np.repeat(np.arange(count), groups)
        return Table({"query": query, **repeated, "total": by_query.mT.reshape(-1).numpy()})


@dataclass(frozen=True)
class Total(_Summed):
    """The sum of attention weights of each query over each group of slots; of their sizes if `absolute`.

    With `valued`, each weight is first multiplied by the size of the value it belongs to, |c_t| ||e_t||.
    """

    by: By | None = None
    absolute: bool = False
    valued: bool = False

    @property
    def _sums(self) -> Sums:
        return Sums(self.by, self.absolute, self.valued)


@dataclass(frozen=True)
class Timeline(_Summed):
    """The sum of attention weights of each query over stretches of training time."""

    bins: int = 60
    absolute: bool = False
    valued: bool = False

    @property
    def _sums(self) -> Sums:
        return Sums(self.bins, self.absolute, self.valued)


@dataclass(frozen=True)
class Output:
    """The layer's output by its dual form: the initial part plus attention over the slots."""

    def begin(self, scope: Scope, layer: str, queries: Tensor) -> Fold:
        return OutputFold(scope.run.layers[layer], queries, scope.coefficients)

    def answer(self, scope: Scope, layer: str, queries: Tensor, fold: Any) -> Tensor:
        initial = initial_output(scope.run, scope.run.layers[layer], queries, scope.coefficients)
        result: Tensor = (initial + fold.output).to(queries.dtype)
        return result


def lookup(scope: Scope, layer: str, slots: Array) -> dict[str, Array]:
    """Step, coefficient and tags of slots."""
    blocks = scope.slots(layer).at(slots)
    if not blocks:
        return {name: np.empty(0) for name in ("step", *scope.run.tags)}
    order = np.argsort(np.concatenate([positions for positions, _ in blocks]))

    def column(read: Callable[[Block], Array]) -> Array:
        return np.concatenate([read(block) for _, block in blocks])[order]

    columns = {"step": column(lambda block: block.steps)}
    if scope.run.manifest.storage.values:
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


class LayerSpotlight:
    """One layer's answers to all queries. Every table says which query a row belongs to."""

    def __init__(self, scope: Scope, layer: Layer, queries: Tensor) -> None:
        self.name = layer.name
        self.queries = queries  # (queries, d_in)
        self._scope = scope

    def top(self, k: int = 10, by: By | None = None, per: str | None = None, absolute: bool = False) -> Table:
        """The k highest attention weights: `top(10)`, `top(500, by="label")`, `top(3, per="id")`."""
        table: Table = self._ask(Top(k, by, per, absolute))
        return table

    def total(self, by: By | None = None, absolute: bool = False, valued: bool = False) -> Table:
        """Attention summed over groups of slots: `total(by="label")`, `total(by=("task", "label"))`.

        With `absolute`, sizes of weights are summed; with `valued`, each counts |c_t| ||e_t|| times.
        """
        table: Table = self._ask(Total(by, absolute, valued))
        return table

    def timeline(self, bins: int = 60, absolute: bool = False, valued: bool = False) -> Table:
        """Attention summed over stretches of training time."""
        table: Table = self._ask(Timeline(bins, absolute, valued))
        return table

    def output(self) -> Tensor:
        """The dual form's output, (queries, d_out): equals the layer's output."""
        output: Tensor = self._ask(Output())
        return output

    def initial(self) -> Tensor:
        """The part of the output that is due to no slot: the initial weights, as far as they are left."""
        layer = self._scope.run.layers[self.name]
        return initial_output(self._scope.run, layer, self.queries, self._scope.coefficients).to(self.queries.dtype)

    def collect(self, *questions: Question) -> list[Any]:
        """Several answers in one reading of the slots."""
        portion = self._portion(questions)
        parts = [self._collect(questions, queries) for queries in torch.split(self.queries, portion)]
        return [_joined(answers, portion) for answers in zip(*parts, strict=True)]

    def _portion(self, questions: Sequence[Question]) -> int:
        """How many queries are asked at a time: fewer, where each has a sum for every training example."""
        by = [question.units for question in questions if isinstance(question, Top) and question.per]
        cells = max((size(self._scope.grouping(self.name, units)) for units in by), default=0)
        return max(1, min(_QUERIES, _CELLS // max(cells, 1)))

    def _collect(self, questions: Sequence[Question], queries: Tensor) -> list[Any]:
        folds = [question.begin(self._scope, self.name, queries) for question in questions]
        needed = [fold for fold in folds if fold is not None]
        if needed:
            scan(self._scope, self.name, needed, queries)
        return [
            question.answer(self._scope, self.name, queries, fold)
            for question, fold in zip(questions, folds, strict=True)
        ]

    def _ask(self, question: Question) -> Any:
        return self.collect(question)[0]

    def __repr__(self) -> str:
        return f"LayerSpotlight({self.name!r}: {len(self.queries):,} queries of width {self.queries.shape[1]})"


class Spotlight:
    """The queries of a test input in every recorded layer: `spotlight["layers.2"].top(10)`.

    `note` says so when the model that made the queries is not the one the memory ends with.
    """

    def __init__(self, scope: Scope, queries: Mapping[str, Tensor], note: str | None) -> None:
        self._layers = {name: LayerSpotlight(scope, scope.run.layers[name], q) for name, q in queries.items()}
        self.note = note

    def __getitem__(self, layer: str) -> LayerSpotlight:
        if layer not in self._layers:
            raise UnknownName("layer", layer, self._layers)
        return self._layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def collect(self, *questions: Question) -> dict[str, list[Any]]:
        """The answers of every layer, each layer read once."""
        return {name: layer.collect(*questions) for name, layer in self._layers.items()}

    def __repr__(self) -> str:
        lines = [f"  {name}: {len(layer.queries):,} queries" for name, layer in self._layers.items()]
        return "\n".join(["Spotlight", *lines, *([f"  note: {self.note}"] if self.note else [])])

    def _repr_html_(self) -> str:
        rows = "".join(f"<li>{name}: {len(layer.queries):,} queries</li>" for name, layer in self._layers.items())
        return f"<b>Spotlight</b><ul>{rows}</ul>{self.note or ''}"
