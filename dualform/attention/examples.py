"""Training examples in place of slots: the keys of all slots that share a tag, summed up.

The scores of an example's slots add up to one product with the sum of their keys. The sums are kept, so that all
further queries are to as many keys as there are examples, and not to every visit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.attention.folds import Best, TotalFold, Visits, best_of_cells
from dualform.attention.search import Members, Search
from dualform.attention.sketch import Budget, Sketch
from dualform.slots import Block, Grouping

Array = NDArray[Any]

_ROWS = 4096  # sketched at a time


@dataclass(frozen=True)
class SummedKeys:
    """Rows in memory, read as stored ones are."""

    rows: Tensor  # (examples, d_in)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Array) -> Tensor:
        return self.rows[torch.from_numpy(index)]

    def weights(self, index: Array, queries: Tensor) -> Tensor:
        return queries @ self.rows[torch.from_numpy(index)].mT

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(self.rows), _ROWS):
            yield first, self.rows[first : first + _ROWS]


class ExamplesFold:
    """Sums up the keys of each example, and counts its visits."""

    def __init__(self, d_in: int, dtype: torch.dtype, grouping: Grouping) -> None:
        self.grouping = grouping
        self.keys = SummedKeys(torch.zeros(grouping.size, d_in, dtype=dtype))
        self.visits = Visits(grouping.size)

    def add(self, block: Block) -> None:
        codes = self.grouping.codes(block)
        block.keys.add_to(self.keys.rows, codes, None)
        self.visits.add(block, codes)

    def merge(self, other: "ExamplesFold") -> None:
        self.keys.rows.add_(other.keys.rows)
        self.visits.merge(other.visits)

    def finish(self) -> "ExamplesFold":
        return self


@dataclass(frozen=True)
class Examples:
    """The examples of a view, by groups."""

    keys: SummedKeys
    sketch: Sketch
    members: Members
    visits: Visits  # in the order of `keys`

    @classmethod
    def of(cls, fold: ExamplesFold, by: Sequence[str], budget: Budget) -> "Examples | None":
        """Of each combination in a grouping, within the groups of the tags `by`. None if there is no sketch of them."""
        keys = fold.keys
        sketch = Sketch.of(keys, keys.rows.shape[1], budget)
        return cls(keys, sketch, _members(fold.grouping, by, fold.visits), fold.visits) if sketch else None

    def best(self, queries: Tensor, k: int) -> Best:
        return Search(self.keys, self.sketch, self.members, k, absolute=False).best(queries)


def best_examples(totals: TotalFold, grouping: Grouping, by: Sequence[str], k: int) -> Best:
    """The k examples with the highest totals in each group."""
    examples = np.flatnonzero(totals.visits.count)
    group, first_slot = _groups(grouping, by, examples), totals.visits.first_slot[examples]
    score = totals.totals[examples]  # (examples, queries)
    example, query = _contenders(score, group, k)
    found = score[torch.from_numpy(example), torch.from_numpy(query)].numpy()
    kept = best_of_cells(query * (group.max(initial=0) + 1) + group[example], first_slot[example], found, k)
    return Best(query[kept], group[example[kept]], first_slot[example[kept]], found[kept])


def _contenders(score: Tensor, group: Array, k: int) -> tuple[Array, Array]:
    """The examples that may be among the k best of their group, and for which query: few, where examples are many."""
    found = []
    for number in np.unique(group):
        members = torch.from_numpy(np.flatnonzero(group == number))
        of_group = score[members]  # (members, queries)
        bar = of_group.topk(min(k, len(members)), dim=0).values[-1]  # ties with the last are sorted out later
        member, query = torch.nonzero(of_group >= bar, as_tuple=True)
        found.append(torch.stack([members[member], query]))
    both: Array = torch.cat(found, dim=1).numpy() if found else np.empty((2, 0), dtype=np.int64)
    return both[0], both[1]


def _groups(grouping: Grouping, by: Sequence[str], examples: Array) -> NDArray[np.int64]:
    """The group of each example, by its tags."""
    group, columns = np.zeros(len(examples), dtype=np.int64), grouping.columns
    for name in by:
        known, code = np.unique(columns[name][examples], return_inverse=True)
        group = group * len(known) + code.reshape(-1)
    return group


def _members(grouping: Grouping, by: Sequence[str], visits: Visits) -> Members:
    """Those with any slots, group by group; each is named by its first slot."""
    examples = np.flatnonzero(visits.count)
    group = _groups(grouping, by, examples)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max(initial=0) + 2))
    return Members(visits.first_slot[examples[order]], torch.from_numpy(examples[order]), starts)
