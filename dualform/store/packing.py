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

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]

TORCH = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

_TOP = 15  # float16 ends a little below 2**16: a row's largest entry is brought into [2**14, 2**15)
_MOST = 126  # powers of two beyond it are not normal float32 numbers; only rows below 1e-33 notice


def pack(rows: Tensor, dtype: str, empty: Empty) -> tuple[Tensor, Tensor | None]:
    """A copy of rows (n, d) in the stored precision, and for float16 the exponent (n,) they were divided by.

    The copy goes to memory that `empty(shape, dtype)` provides.
    """
    packed = empty(tuple(rows.shape), TORCH[dtype])
    if dtype != "float16":
        return packed.copy_(rows), None
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # Not the row's norm: its squares overflow and underflow long before the entries do. What is done on
    # one number a row is quicker in numpy.
    highest, lowest = (found.float().cpu().numpy() for found in (rows.amax(dim=1), rows.amin(dim=1)))
    exponent = np.maximum(_exponent(np.maximum(highest, -lowest)) - _TOP, -_MOST)
    scale = torch.from_numpy(_power_of_two(-exponent)[:, None]).to(rows.device)
    scaled = torch.mul(rows, scale, out=packed) if rows.device == packed.device else packed.copy_(rows * scale)
    return scaled, torch.from_numpy(exponent.astype(np.int16))


def unpack(rows: Tensor, exponent: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The inverse, in `dtype` (float32 or float64)."""
    wide = rows.to(dtype)
    if exponent is None:
        return wide
    scale = torch.from_numpy(_power_of_two(exponent.cpu().numpy())).to(rows.device)
    return wide.mul_(scale[:, None])


def _exponent(sizes: NDArray[np.float32]) -> NDArray[np.int32]:
    """The exponent above each size, 2**(e - 1) <= size < 2**e: its bits taken apart."""
    exponent: NDArray[np.int32] = (sizes.view(np.int32) >> 23) - 126
    return exponent


def _power_of_two(exponent: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """Exactly 2**exponent: its bits put together."""
    return ((exponent.astype(np.int32) + 127) << 23).view(np.float32)
