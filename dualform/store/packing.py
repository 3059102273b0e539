"""Rows of floats to the stored precision and back.

float16 has five bits of exponent, too few for back-propagated errors, which may all be below 1e-8. So
each row is divided by a power of two that puts its largest entry just below float16's limit; the power's
exponent is stored beside the row and loses nothing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Empty = Callable[[tuple[int, int], torch.dtype], Tensor]

TORCH = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

_TOP = 15  # float16 ends a little below 2**16: a row's largest entry is brought into [2**14, 2**15)
_EXPONENT_BITS = 0x7F800000
_LEAST = 15  # smaller sizes count as this one: the power for them would not be a float32; below 1e-33


def pack(rows: Tensor, dtype: str, empty: Empty) -> tuple[Tensor, Tensor | None]:
    """A copy of rows (n, d) in the stored precision, and for float16 the exponent (n,) they were divided by.

    The copy goes to memory that `empty(shape, dtype)` provides.
    """
    packed = empty((rows.shape[0], rows.shape[1]), TORCH[dtype])
    if dtype != "float16":
        return packed.copy_(rows), None
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # Not the row's norm: its squares overflow and underflow long before the entries do. What is done on
    # one number a row is quicker in numpy.
    highest, lowest = rows.amax(dim=1).cpu().numpy(), rows.amin(dim=1).cpu().numpy()
    exponent, scale = _scaling(np.maximum(highest, -lowest).astype(np.float32, copy=False))
    factor = torch.from_numpy(scale[:, None]).to(rows.device)
    scaled = torch.mul(rows, factor, out=packed) if rows.device == packed.device else packed.copy_(rows * factor)
    return scaled, torch.from_numpy(exponent)


def _scaling(sizes: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """For rows of these sizes the exponents to be divided by, and the exact powers of two that do it.

    A float32's bits 23 to 30 are its exponent plus 127, so both take a subtraction.
    """
    biased = np.maximum((sizes.view(np.int32) & _EXPONENT_BITS) >> 23, _LEAST)
    exponent = (biased - (126 + _TOP)).astype(np.int16)
    return exponent, ((127 + 126 + _TOP - biased) << 23).view(np.float32)


def unpack(rows: Tensor, exponent: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The inverse, in `dtype` (float32 or float64)."""
    wide = rows.to(dtype)
    if exponent is None:
        return wide
    scale = torch.from_numpy(_power_of_two(exponent.cpu().numpy())).to(rows.device)
    return wide.mul_(scale[:, None])


def _power_of_two(exponent: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """Exactly 2**exponent: its bits put together."""
    return ((exponent.astype(np.int32) + 127) << 23).view(np.float32)
