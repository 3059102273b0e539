"""Tell where attention comes from: pairs of positions, one in a test input and one in the training inputs.

    pairs = layer.position_pairs(0, id=7)       # (height, width, height, width): of input 0, and of example 7
    pairs.sum(axis=(0, 1))                      # a heat map over the training image
    pairs.sum(axis=(2, 3))                      # and one over the test image

A convolution has a slot for each position of its output. All slots that are chosen are summed up by their position.
"""

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.engine import Plan, carry_out
from dualform.errors import QueryError
from dualform.slots import Block, Selection, Slots


def position_pairs(slots: Slots, selection: Selection, queries: Tensor, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return attention weights by pairs of positions: (*positions of the input, *positions of the maps).

    Args:
        slots: The slots of a layer that has positions.
        selection: Which of them are summed up.
        queries: One for each position of an input.
        shape: The positions of the input.
    """
    positions = map_positions(slots)
    fold = PositionFold(slots, queries, positions)
    pairs: Tensor = carry_out(Plan(slots, selection, (fold,)))[0]
    return pairs.view(*shape, *positions).numpy()


def map_positions(slots: Slots) -> tuple[int, ...]:
    """Return how many positions the maps of a layer have along each dimension; raise if not all have the same."""
    sizes = slots.map_positions
    if len(sizes) != 1:
        what = "has no positions: it is no convolution" if not sizes else f"saw maps of {len(sizes)} sizes"
        raise QueryError(f"layer {slots.layer.name!r} {what}, so there are no pairs of positions to sum up over")
    return sizes.pop()


class PositionFold:
    """Sums up attention weights of slots by their position: (queries, positions)."""

    def __init__(self, slots: Slots, queries: Tensor, positions: tuple[int, ...]) -> None:
        self._slots, self._queries, self._positions = slots, queries, positions
        self._sums = torch.zeros(len(queries), prod(positions), dtype=torch.float64)

    def add(self, block: Block) -> None:
        places = np.stack([*self._slots.positions(block.slots).values()])
        number: Any = np.ravel_multi_index(tuple(places), self._positions)
        weights = block.keys.pair(self._queries).double()  # (queries, slots)
        self._sums.index_add_(1, torch.from_numpy(number), weights)

    def merge(self, other: "PositionFold") -> None:
        self._sums += other._sums

    def finish(self) -> Tensor:
        return self._sums
