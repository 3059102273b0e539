"""Memory for packed rows, used over and over.

Fresh memory is slow: the system hands it out page by page, zeroed. A run needs a megabyte a step, keeps
it for a chapter, and then needs it no more; so the blocks of a written chapter serve the next but one.

Each column of the store (a layer's keys, say) has blocks of its own, in which the rows of one step follow
those of the step before: the writer then has few large pieces to go through, not one for each step.
"""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK = 8 << 20
_PIECES = 16


class Arena:
    """`room` is where a column's rows go; `hand_over` starts afresh and says how to give blocks back."""

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque()  # filled by the writer's thread, emptied by the training's
        self._used: list[Tensor] = []
        self._rooms: list[Room] = []

    @property
    def carved(self) -> int:
        """Bytes, in all."""
        return sum(room.carved for room in self._rooms)

    def room(self, width: int, dtype: torch.dtype) -> "Room":
        """For rows of numbers."""
        room = Room(self._block, width, dtype)
        self._rooms.append(room)
        return room

    def _block(self, size: int) -> Tensor:
        reused = size <= _BLOCK and self._free
        block = self._free.popleft() if reused else torch.empty(max(size, _BLOCK), dtype=torch.uint8)
        self._used.append(block)
        return block

    def hand_over(self) -> Callable[[], None]:
        """Leave what was carved so far to the writer, who calls the result when it is on the disk."""
        blocks = [block for block in self._used if len(block) == _BLOCK]  # outsize ones are not kept
        self._used = []
        for room in self._rooms:
            room.leave()
        return lambda: self._free.extend(blocks)


class Room:
    """Carves the rows of one column out of blocks.

    Several pieces are cut at once, of as many rows as are asked for, since batches mostly are of one size: to cut them
    one by one, in the midst of a training, takes several times as long.
    """

    def __init__(self, block: Callable[[int], Tensor], width: int, dtype: torch.dtype) -> None:
        self._new_block, self._width, self._dtype = block, width, dtype
        self._row = width * dtype.itemsize  # bytes
        self.carved = 0  # bytes, in all
        self.leave()

    def leave(self) -> None:
        self._block = torch.empty(0, self._width, dtype=self._dtype)
        self._start = 0  # rows of it that are in use
        self._pieces: list[Tensor] = []  # behind them, the first one last

    def empty(self, rows: int) -> Tensor:
        """Uninitialised rows on the CPU, right behind the last ones if there is room."""
        if not self._pieces or len(self._pieces[-1]) != rows:
            self._cut(rows)
        self._start += rows
        self.carved += rows * self._row
        return self._pieces.pop()

    def _cut(self, rows: int) -> None:
        if self._start + rows > len(self._block):
            whole = self._new_block(rows * self._row)
            end = len(whole) // self._row
            self._block, self._start = whole[: end * self._row].view(self._dtype).view(-1, self._width), 0
        pieces = min((len(self._block) - self._start) // rows, _PIECES)
        self._pieces = [*self._block.narrow(0, self._start, pieces * rows).split(rows)][::-1]
