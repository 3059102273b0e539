"""Say where rows lie in time: from rows (slots, d), as modules are given them, to blocks by time step, and back.

    steps = Steps.of_tensor(time, batch)            # or of_packed(packed)
    steps.spread(rows)                              # (time, batch, d), in the order a recurrence goes
    steps.gather(blocks)                            # (slots, d), of blocks (time, d, batch)
    steps.reversed()                                # the same rows, each sequence from its end

Inside of a recurrence slots are columns: BLAS is quicker that way round, and a gate is then one contiguous block.

The sequences of a PackedSequence are sorted by length. So those that still go on at a step are the first columns, in
either direction, since a sequence is reversed within its own length. Nothing is computed of padding, nor read from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass(frozen=True, eq=False)
class Steps:
    """The time steps of some sequences."""

    time: int
    batch: int
    sizes: Sequence[int] | None = None  # how many sequences go on at each step, where they are packed
    lengths: Tensor | None = None  # (batch,), where they are packed
    place: Tensor | None = None  # (slots,): of each row, its number in (time x batch); None: rows are all of these
    backwards: bool = False

    @classmethod
    def of_packed(cls, packed: PackedSequence) -> "Steps":
        """Return the steps of packed sequences, which are sorted by length."""
        sizes, device = packed.batch_sizes, packed.data.device
        batch = int(sizes[0])
        lengths = (sizes[:, None] > torch.arange(batch)).sum(0)  # (batch,)
        step = torch.arange(len(sizes)).repeat_interleave(sizes)  # (slots,)
        column = torch.arange(len(packed.data)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return cls(len(sizes), batch, sizes.tolist(), lengths.to(device), (step * batch + column).to(device))

    def reversed(self) -> "Steps":
        """Return the steps of the same rows, each sequence from its own end."""
        if self.place is None or self.lengths is None:
            return replace(self, backwards=not self.backwards)
        step, column = self.place // self.batch, self.place % self.batch
        return replace(self, place=(self.lengths[column] - 1 - step) * self.batch + column)

    def spread(self, rows: Tensor) -> Tensor:
        """Return rows (slots, d) as (time, batch, d), zeros where there is no row."""
        if self.place is not None:
            blocks = rows.new_zeros(self.time * self.batch, rows.shape[1])
            return blocks.index_copy_(0, self.place, rows).view(self.time, self.batch, -1)
        blocks = rows.view(self.time, self.batch, rows.shape[1])
        return blocks.flip(0) if self.backwards else blocks

    def gather(self, blocks: Tensor) -> Tensor:
        """Return the rows (slots, d) of blocks (time, d, batch), contiguous."""
        blocks = blocks.mT  # (time, batch, d)
        if self.place is not None:
            return blocks[self.place // self.batch, self.place % self.batch]
        rows = blocks.new_empty(self.time * self.batch, blocks.shape[2])  # no view, which could not be changed in place
        rows.view(blocks.shape).copy_(blocks.flip(0) if self.backwards else blocks)
        return rows

    def last(self, states: Tensor) -> Tensor:
        """Return the state after the last step of each sequence: (batch, d), of all states (time + 1, d, batch)."""
        if self.lengths is None:
            return states[-1].mT.clone(
                memory_format=torch.contiguous_format
            )  # no view of what is needed on the way back
        return states[self.lengths, :, torch.arange(self.batch, device=states.device)]

    def each(self, *blocks: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield what the steps are to work on, one after the other: of blocks (time, ..., batch), those that go on."""
        return zip(*(self._active(block) for block in blocks), strict=True)

    def each_back(self, running: Sequence[Tensor], *blocks: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield the same from the last step to the first, after tensors (..., batch) that all steps work on."""
        every = zip(*(self._active(block) for block in blocks), strict=True)
        several: Iterator[Any] = (
            repeat(tuple(running))
            if self.sizes is None
            else (tuple(one[..., :size] for one in running) for size in reversed(self.sizes))
        )
        return ((*at, *step) for at, step in zip(several, reversed(list(every)), strict=False))

    def _active(self, block: Tensor) -> Sequence[Tensor]:
        if self.sizes is None:
            return block.unbind()
        return [step[..., :size] for step, size in zip(block, self.sizes, strict=True)]
