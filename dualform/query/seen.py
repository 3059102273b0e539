"""When slots were seen: of each group how many there are, and from which step to which."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Grouping, size
from dualform.query.scan import Slots
from dualform.query.selection import Selection


def seen(slots: Slots, selection: Selection, grouping: Grouping) -> dict[str, NDArray[Any]]:
    """The groups that have slots, each with how many, its first step and its last. Reads tags, no keys."""
    groups = size(grouping)
    count = np.zeros(groups, dtype=np.int64)
    first = np.full(groups, np.iinfo(np.int64).max)
    last = np.full(groups, -1, dtype=np.int64)
    for block in slots.scan(selection):
        codes: NDArray[np.int64] = grouping.codes(block)
        np.add.at(count, codes, block.visits)
        np.minimum.at(first, codes, block.steps)
        np.maximum.at(last, codes, block.steps)
    there = np.flatnonzero(count)
    columns = {name: values[there] for name, values in grouping.columns.items()}
    return {**columns, "visits": count[there], "first_step": first[there], "last_step": last[there]}
