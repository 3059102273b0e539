"""Ask what influence training examples had on some outputs, as tables.

influence = memory.influence(model, images)         # of the class each image is taken for
influence.top(10)                                   # the examples that speak most for it
influence.total(by="label"), influence.timeline(60)
influence.of(without={"id": [3, 17]})               # the outputs, had these not been trained on
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import NotRecorded, QueryError, UnknownName
from dualform.influence.visits import Visits
from dualform.slots import By, tag_names
from dualform.slots.tag_values import TagValues
from dualform.table import Table

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Influence:
    """What each visit to an example has added to some outputs: with it, less without it.

    `classes` are the targets, one for each input; `outputs` what the model says now: margins, logits or losses. What is
    positive speaks for a target; of a loss, against it. `notes` say what the numbers do not hold.
    """

    classes: Tensor  # (inputs,)
    measure: str  # what outputs are
    outputs: Tensor  # (inputs,)
    method: str
    notes: Sequence[str]
    _visits: Visits
    _scores: Tensor  # (inputs, visits)

    def top(self, k: int = 10, per: str = "id", *, against: bool = False, absolute: bool = False) -> Table:
        """Return the examples with the most influence: `top(10)`.

        Args:
            k: How many.
            per: The tag that says what an example is.
            against: Those that speak most against the target instead.
            absolute: The largest, whatever they speak for.

        Returns:
            A row for each input and example: query, total, how many visits, and the tags of the first of them. Of a
            margin or a loss also `probability`, by how much that of the target changes, to first order.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise QueryError(f"k must be at least 1, a whole number, not {k!r}")
        values, totals, counts, first = self._summed((per,))
        order = totals.abs() if absolute else -totals if against else totals
        best = order.topk(min(k, totals.shape[1]), dim=1).indices  # (inputs, k)
        query = np.repeat(np.arange(len(totals)), best.shape[1])
        chosen = best.reshape(-1)
        total = totals.gather(1, best).reshape(-1).numpy()
        visit = first[chosen.numpy()]
        columns = {
            "query": query,
            "total": total,
            **self._probabilities(query, total),
            "visits": counts[chosen.numpy()],
        }
        tags = {tag: column[visit] for tag, column in self._visits.columns.items()}
        return Table({**columns, per: values[per][chosen.numpy()], **{t: c for t, c in tags.items() if t != per}})

    def total(self, by: By | None = None) -> Table:
        """Sum up influence over groups of examples: `total(by="label")`, `total(by=("task", "label"))`."""
        values, totals, counts, _ = self._summed(() if by is None else tag_names(by))
        groups, inputs = totals.shape[1], len(totals)
        repeated = {name: np.tile(column, inputs) for name, column in values.items()}
        query, total = np.repeat(np.arange(inputs), groups), totals.reshape(-1).numpy()
        return Table({"query": query, **repeated, "visits": np.tile(counts, inputs), "total": total})

    def timeline(self, bins: int = 60) -> Table:
        """Sum up influence over stretches of training time."""
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
            raise QueryError(f"bins must be at least 1, a whole number, not {bins!r}")
        steps = self._visits.until
        totals = self._by_number(self._visits.steps * bins // max(steps, 1), bins)
        edges = -(-np.arange(bins + 1) * steps // bins)
        columns = {"first_step": np.tile(edges[:-1], len(totals)), "last_step": np.tile(edges[1:], len(totals))}
        query = np.repeat(np.arange(len(totals)), bins)
        return Table({"query": query, **columns, "total": totals.reshape(-1).numpy()})

    def of(self, *, without: Mapping[str, Any]) -> Tensor:
        """Predict the outputs of a model that was trained without some examples: (inputs,).

        Influence adds up over examples, as far as a first order goes: for many of them `memory.retrain` is the truth.
        """
        if not isinstance(without, Mapping) or not without:
            raise QueryError(f'without says which examples by their tags, such as {{"id": [3, 4]}}, not {without!r}')
        left_out = np.ones(len(self._visits), dtype=bool)
        for tag, wanted in without.items():
            column, values = self._column(tag), np.atleast_1d(np.asarray(wanted))
            known = {*column.tolist()}
            for value in values.tolist():
                if value not in known:
                    raise UnknownName(f"value of tag {tag!r}:", value, sorted(known - {None}))
            left_out &= np.isin(column, values)
        return self.outputs - self._scores[:, torch.from_numpy(left_out)].double().sum(dim=1)

    @property
    def examples(self) -> Table:
        """All examples, with their influence on every input, unsorted: columns id, query and total."""
        values, totals, _, _ = self._summed(("id",))
        query = np.repeat(np.arange(len(totals)), totals.shape[1])
        return Table({"query": query, "id": np.tile(values["id"], len(totals)), "total": totals.reshape(-1).numpy()})

    def _probabilities(self, query: Array, total: Array) -> dict[str, Array]:
        if self.measure == "logit":
            return {}
        outputs = self.outputs.numpy()[query]
        if self.measure == "loss":
            return {"probability": -np.exp(-outputs) * total}
        chance = 1 / (1 + np.exp(-outputs))
        return {"probability": chance * (1 - chance) * total}

    def _column(self, tag: str) -> Array:
        if tag not in self._visits.columns:
            raise UnknownName("tag", tag, self._visits.columns)
        return self._visits.columns[tag]

    def _summed(self, tags: tuple[str, ...]) -> tuple[dict[str, Array], Tensor, Array, Array]:
        """Return the values of each group, sums over it (inputs, groups), its visits, and the first of them."""
        number = np.zeros(len(self._visits), dtype=np.int64)
        for tag in tags:
            column = self._column(tag)
            known = TagValues(*_distinct(column))
            number = np.unique(number * known.size + known.places(column), return_inverse=True)[1]
        first = np.unique(number, return_index=True)[1]
        columns = {tag: self._column(tag)[first] for tag in tags} or {"group": np.full(len(first), "all")}
        return columns, self._by_number(number, len(first)), np.bincount(number, minlength=len(first)), first

    def _by_number(self, number: Array, groups: int) -> Tensor:
        sums = torch.zeros(len(self._scores), groups, dtype=torch.float64)
        return sums.index_add_(1, torch.from_numpy(number), self._scores.double())

    def __repr__(self) -> str:
        lines = [f"Influence of {len(self._visits):,} visits on {len(self.outputs):,} outputs ({self.measure})"]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def _distinct(column: Array) -> tuple[Array, bool]:
    """Return the values of a tag, sorted, and whether some visits have none."""
    if column.dtype != object:
        return np.unique(column), False
    values = [value for value in column.tolist() if value is not None]
    return np.unique(np.array(values)), len(values) < len(column)


def check_room(visits: int, inputs: int, max_bytes: int) -> None:
    """Raise if a score for each visit and input would take too much."""
    nbytes = 3 * 4 * visits * inputs  # two estimates, and their mean
    if nbytes > max_bytes:
        raise NotRecorded(
            f"the influence of {visits:,} visits on {inputs:,} inputs would take {nbytes / 1e9:.1f} GB: ask "
            "about fewer inputs at a time"
        )
