"""Sum up the keys of all slots that share a tag: training examples in place of slots.

The scores of an example's slots add up to one product with the sum of their keys. The sums are kept, so that all
further queries are to as many keys as there are examples, and not to every visit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dualform.attention.folds import Visits, groups_of_examples
from dualform.attention.search import Members, Search, Sketch, SummedKeys
from dualform.slots import Block, Grouping


@dataclass(frozen=True)
class Examples:
    """The examples of a view: a search among them, and how often each was visited."""

    search: Search
    visits: Visits


class ExamplesFold:
    """Sums up the keys of each example, and counts its visits."""

    def __init__(self, d_in: int, dtype: torch.dtype, grouping: Grouping) -> None:
        self._grouping = grouping
        self.keys = SummedKeys(torch.zeros(grouping.size, d_in, dtype=dtype))
        self.visits = Visits(grouping.size)

    def add(self, block: Block) -> None:
        codes = self._grouping.codes(block)
        block.keys.add_to(self.keys.rows, codes, None)
        self.visits.add(block, codes)

    def merge(self, other: "ExamplesFold") -> None:
        self.keys.rows.add_(other.keys.rows)
        self.visits.merge(other.visits)

    def finish(self) -> "ExamplesFold":
        return self

    def examples(self, by: Sequence[str], sketch: Sketch) -> Examples:
        """Return the examples with any slots, within the groups of the tags `by`; each by its first slot."""
        visited = np.flatnonzero(self.visits.count)
        group = groups_of_examples(self._grouping, by, visited)
        order = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[order], np.arange(group.max(initial=0) + 2))
        members = Members(self.visits.first_slot[visited[order]], torch.from_numpy(visited[order]), starts)
        return Examples(Search(self.keys, sketch, members), self.visits)
