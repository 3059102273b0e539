"""Memory for packed rows, used over and over.

Fresh memory is slow: the system hands it out page by page, zeroed. A run needs a megabyte a step, keeps
it for a chapter, and then needs it no more; so the blocks of a written chapter serve the next but one.
"""

from collections import deque
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

_BLOCK = 8 << 20
_ALIGN = 64


class Arena:
    """`empty` carves tensors out of blocks; `hand_over` starts afresh and says how to give blocks back."""

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque()  # filled by the writer's thread, emptied by the training's
        self._blocks: list[Tensor] = []
        self._room = 0  # bytes left in the last block

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor on the CPU."""
        size = prod(shape) * dtype.itemsize
        if size > self._room:
            self._blocks.append(self._block(size))
            self._room = len(self._blocks[-1])
        block = self._blocks[-1]
        start = len(block) - self._room
        self._room -= -(-size // _ALIGN) * _ALIGN
        return block[start : start + size].view(dtype).view(shape)

    def _block(self, size: int) -> Tensor:
        if size <= _BLOCK and self._free:
            return self._free.popleft()
        return torch.empty(max(size, _BLOCK), dtype=torch.uint8)

    def hand_over(self) -> Callable[[], None]:
        """Leave what was carved so far to the writer, who calls the result when it is on the disk."""
        blocks = [block for block in self._blocks if len(block) == _BLOCK]  # outsize ones are not kept
        self._blocks, self._room = [], 0
        return lambda: self._free.extend(blocks)
