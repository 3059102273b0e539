"""Pack rows of floats into the stored precision, and unpack them.

float16 has five bits of exponent, too few for back-propagated errors, which may all be below 1e-8. So
each row is divided by a power of two; the power's exponent is stored beside the row and loses nothing.
No entry is off by more than 2**-11 of its row's largest.

Rows of ordinary size share one power, which makes packing a single pass over them. Those of keys are not
divided at all: what a key is packed to must not depend on the batch it came in, or a key that comes
again would not be recognised.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.store.schema import EXPONENTS

Exponents = NDArray[np.int16]

TORCH = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

_FEW_ROWS = 512  # for so few the interpreter is quicker than numpy, whose code a training drives out of the cache
_UNROUNDED = (torch.float32, torch.float64)
_TOP = 15  # float16 ends a little below 2**16: a row's largest entry is brought below 2**15
_BOTTOM = -11  # and is at least this power of two: float16 loses bits from 2**-14 on, where its lesser entries are


def pack(rows: Tensor, packed: Tensor, *, alike: bool = False) -> tuple[Tensor, Exponents | None]:
    """Copy rows (n, d) into `packed`, in its precision; for float16 with the exponents (n,) they were divided by.

    With `alike`, the same row is always packed to the same bytes, whatever stands beside it.
    """
    if packed.dtype != torch.float16:
        return packed.copy_(rows), None
    if rows.dtype not in _UNROUNDED:
        rows = rows.float()
    # A row's largest entry is at most its norm, and at least its norm over the root of its width.
    norms = torch.linalg.vector_norm(rows, dim=1)
    least, most = _extremes(norms)
    shared = 0 if alike or not math.isfinite(most) else math.frexp(most)[1] - _TOP
    shared = min(max(shared, EXPONENTS[0]), EXPONENTS[-1])
    if math.ldexp(math.sqrt(rows.shape[1]), shared + _BOTTOM) <= least and most < math.ldexp(1.0, shared + _TOP):
        # To multiply first is quicker than torch.mul into float16, which goes through small buffers.
        packed.copy_(rows * math.ldexp(1.0, -shared) if shared else rows)
        return packed, _repeated(shared, len(norms))
    return _packed_singly(rows, norms.cpu().numpy(), packed)


def _extremes(norms: Tensor) -> tuple[float, float]:
    """Return the least and the largest. With NaN among them either may be NaN: such rows are never stored."""
    if len(norms) <= _FEW_ROWS:
        few = norms.tolist()
        return min(few), max(few)
    several = norms.cpu().numpy()
    return float(several.min()), float(several.max())


@lru_cache(maxsize=256)
def _repeated(exponent: int, count: int) -> Exponents:
    """Return the same read-only array for every batch that has the same exponents, which is nearly every batch."""
    exponents = np.full(count, exponent, dtype=np.int16)
    exponents.flags.writeable = False
    return exponents


def _packed_singly(rows: Tensor, norms: NDArray[Any], packed: Tensor) -> tuple[Tensor, Exponents]:
    """Divide each row by a power of its own, or not at all if it is of ordinary size."""
    # Not the row's norm: its squares overflow and underflow long before the entries do.
    sizes = np.maximum(rows.amax(dim=1).cpu().numpy(), -rows.amin(dim=1).cpu().numpy())
    ordinary = (norms >= math.ldexp(math.sqrt(rows.shape[1]), _BOTTOM)) & (norms < math.ldexp(1.0, _TOP))
    own = np.clip(np.frexp(sizes)[1] - _TOP, EXPONENTS[0], EXPONENTS[-1])
    exponent = np.where(ordinary, 0, own).astype(np.int16)
    scale = torch.from_numpy(np.ldexp(1.0, -exponent)[:, None]).to(rows.device, rows.dtype)
    return packed.copy_(rows * scale), exponent


def unpack(rows: Tensor, exponent: Exponents | None, dtype: torch.dtype) -> Tensor:
    """Return the rows that were packed, in `dtype` (float32 or float64)."""
    unpacked = rows.to(dtype)
    if exponent is None or not exponent.any():  # rows of ordinary size are as they were
        return unpacked
    return unpacked.mul_(torch.from_numpy(power_of_two(exponent))[:, None])


def power_of_two(exponent: Exponents) -> NDArray[np.float32]:
    """Return exactly 2**exponent, by putting its bits together."""
    return ((exponent.astype(np.int32) + 127) << 23).view(np.float32)
