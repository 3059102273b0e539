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


class Arena:
    """`empty` carves tensors out of blocks; `hand_over` starts afresh and says how to give blocks back."""

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque()  # filled by the writer's thread, emptied by the training's
        self._used: list[Tensor] = []
        self._last: dict[str, tuple[Tensor, int, int]] = {}  # of each column: its last block, its rows, those in use

    def empty(self, column: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Uninitialised rows on the CPU, right behind the column's last ones if there is room."""
        rows, width = shape
        block, most, start = self._last.get(column, (None, 0, 0))
        if block is None or most < start + rows:
            whole = self._block(rows * width * dtype.itemsize)
            self._used.append(whole)
            row = width * dtype.itemsize
            most, start = len(whole) // row, 0
            block = whole[: most * row].view(dtype).view(-1, width)
        self._last[column] = block, most, start + rows
        return block.narrow(0, start, rows)

    def _block(self, size: int) -> Tensor:
        if size <= _BLOCK and self._free:
            return self._free.popleft()
        return torch.empty(max(size, _BLOCK), dtype=torch.uint8)

    def hand_over(self) -> Callable[[], None]:
        """Leave what was carved so far to the writer, who calls the result when it is on the disk."""
        blocks = [block for block in self._used if len(block) == _BLOCK]  # outsize ones are not kept
        self._used, self._last = [], {}
        return lambda: self._free.extend(blocks)
