"""Number the slots of a run that several processes recorded: by step, then by process, as one process would have.

    numbers = SlotNumbers(shards, layer)
    numbers.of(places)          # the number of the slot at each place
    numbers.places(slots)       # and back

A *place* counts slots as they lie: shard after shard, process after process. Of one process, both are the same.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.store import Shard

Array = NDArray[Any]


class _Spans(NamedTuple):
    """Slots of one step and process, which follow one another both ways; ordered by where they lie."""

    places: Array  # where each begins
    numbers: Array  # the number of its first slot
    by_number: Array  # the order of numbers


class SlotNumbers:
    """Numbers of a layer's slots; `shards` are those with slots of it, process by process."""

    def __init__(self, shards: Sequence[Shard], layer: str) -> None:
        self._shards, self._layer = shards, layer
        self._one_process = len({shard.info.rank for shard in shards}) < 2

    def of(self, places: Array) -> Array:
        if self._one_process:
            return places
        return _mapped(places, self._spans.places, self._spans.numbers)

    def places(self, slots: Array) -> Array:
        if self._one_process:
            return slots
        order = self._spans.by_number
        return _mapped(slots, self._spans.numbers[order], self._spans.places[order])

    @cached_property
    def _spans(self) -> _Spans:
        passes = [shard.passes(self._layer) for shard in self._shards]
        steps, counts = (np.concatenate(column) for column in zip(*passes, strict=True))
        ranks = np.repeat([shard.info.rank for shard in self._shards], [len(of_shard) for of_shard, _ in passes])
        order = np.lexsort((np.arange(len(steps)), ranks, steps))
        numbers = np.empty_like(counts)
        numbers[order] = np.cumsum(counts[order]) - counts[order]
        return _Spans(np.cumsum(counts) - counts, numbers, order)


def _mapped(values: Array, starts: Array, onto: Array) -> Array:
    """Move values by what the beginnings of their spans are moved by; `starts` ascend."""
    span = np.searchsorted(starts, values, side="right") - 1
    moved: Array = values - starts[span] + onto[span]
    return moved
