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

from dualform.kinds import kind_of
from dualform.query.folds import Best, TotalFold, Visits, best_of_cells
from dualform.query.groups import Grouping, size
from dualform.query.scan import Slots
from dualform.query.search import Members, Search
from dualform.query.selection import Selection
from dualform.query.sketch import Room, Sketch

Array = NDArray[Any]

_ROWS = 4096  # sketched at a time


@dataclass(frozen=True)
class SummedKeys:
    """Rows in memory, read as stored ones are."""

    rows: Tensor  # (units, d_in)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Array) -> Tensor:
        return self.rows[torch.from_numpy(index)]

    def weights(self, index: Array, queries: Tensor) -> Tensor:
        return queries @ self.take(index).mT

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(self.rows), _ROWS):
            yield first, self.rows[first : first + _ROWS]


@dataclass(frozen=True)
class Units:
    """The units of a view, by groups."""

    keys: SummedKeys
    sketch: Sketch
    members: Members
    seen: Visits  # in the order of `keys`

    @classmethod
    def of(
        cls, slots: Slots, selection: Selection, grouping: Grouping, by: Sequence[str], room: Room
    ) -> "Units | None":
        """Of each combination in the grouping, within the groups of the tags `by`. None if there is no room."""
        layer = slots.layer
        nbytes = size(grouping) * layer.d_in * slots.dtype.itemsize
        if not kind_of(layer).vectors or nbytes > room.left:
            return None
        keys = SummedKeys(torch.zeros(size(grouping), layer.d_in, dtype=slots.dtype))
        room.take(nbytes, keys)
        seen = Visits(size(grouping))
        for block in slots.scan(selection):
            codes = grouping.codes(block)
            block.keys.add_to(keys.rows, codes, None)
            seen.add(block, codes)
        sketch = Sketch.of(keys, layer.d_in, room)
        return cls(keys, sketch, _members(grouping, by, seen), seen) if sketch else None

    def search(self, k: int) -> Search:
        return Search(self.keys, self.sketch, self.members, k, absolute=False)


def best_units(totals: TotalFold, grouping: Grouping, by: Sequence[str], k: int) -> Best:
    """The k units with the highest totals in each group."""
    units = np.flatnonzero(totals.seen.count)
    group, first_slot = _groups(grouping, by, units), totals.seen.first_slot[units]
    score = totals.totals[units]  # (units, queries)
    unit, query = _contenders(score, group, k)
    found = score[torch.from_numpy(unit), torch.from_numpy(query)].numpy()
    kept = best_of_cells(query * (group.max(initial=0) + 1) + group[unit], first_slot[unit], found, k)
    return Best(query[kept], group[unit[kept]], first_slot[unit[kept]], found[kept])


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


def _groups(grouping: Grouping, by: Sequence[str], units: Array) -> NDArray[np.int64]:
    """The group of each unit, by its tags."""
    group, columns = np.zeros(len(units), dtype=np.int64), grouping.columns
    for name in by:
        known, code = np.unique(columns[name][units], return_inverse=True)
        group = group * len(known) + code.reshape(-1)
    return group


def _members(grouping: Grouping, by: Sequence[str], seen: Visits) -> Members:
    """Those with any slots, group by group; each is named by its first slot."""
    units = np.flatnonzero(seen.count)
    group = _groups(grouping, by, units)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max(initial=0) + 2))
    return Members(seen.first_slot[units[order]], torch.from_numpy(units[order]), starts)
