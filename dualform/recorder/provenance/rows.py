"""Compare rows of two passes through a layer: by which power of two errors are scaled, and whether keys have moved.

Rows are (rows, width). Pure functions of tensors; experiment.py makes the passes.
"""

from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.recorder.provenance.layout import SHARED, Owners, ranks

_TOLERANCE = 1e-3  # of the rms of all rows. Right readings are below 1e-6, wrong ones above 0.2
_HALF_TOLERANCE = 5e-2
_INFORMATIVE = 20.0  # times as large as the deviation must be what has changed

NOT_ONE_POWER = -1
NO_ERROR = -2


class Agreement(Enum):
    """Whether rows are where a reading expects them."""

    YES = "yes"
    MAYBE = "maybe"  # all rows are alike, so that any reading would fit
    NO = "no"


def powers(first: Tensor, scaled: Tensor, most: int) -> NDArray[np.int64]:
    """Return by which power of two, of 0 to `most`, each row was scaled, bit for bit: (rows,).

    NOT_ONE_POWER where it was not, NO_ERROR where there is nothing but zeros.
    """
    largest = first.abs().argmax(dim=1, keepdim=True)
    ratio = scaled.gather(1, largest).double() / first.gather(1, largest).double()  # (rows, 1)
    power = ratio.log2().round().nan_to_num(-1.0, -1.0, -1.0).clamp(-1, most + 1)
    exact = (scaled == first * torch.exp2(power).to(first.dtype)).all(dim=1, keepdim=True)
    shown = torch.where(exact & (power >= 0) & (power <= most), power, NOT_ONE_POWER)
    nothing = ~(first.any(dim=1, keepdim=True) | scaled.any(dim=1, keepdim=True))
    return _array(torch.where(nothing, NO_ERROR, shown)[:, 0].long())


def origins(owners: Owners, order: Owners, after: Owners | None = None) -> Owners | None:
    """Return where each row comes from, after example `order[b]` has taken the place of example b: (rows,).

    Rows are told apart by their owner, and their rank among its rows. Rows without an owner stay; None if an example
    has other rows than the one whose place it takes.

    Args:
        owners: Of the rows before.
        order: Which example has taken the place of each.
        after: Whose place each row is in afterwards; None: the same as before.
    """
    owned, rank = owners >= 0, ranks(owners)
    if not owned.any():
        return np.arange(len(owners))
    places = np.full((len(order), int(rank[owned].max()) + 1), -1)
    places[owners[owned], rank[owned]] = np.flatnonzero(owned)
    origin = np.arange(len(owners))
    after, rank = (owners, rank) if after is None else (after, ranks(after))
    if rank[owned].max() >= places.shape[1]:
        return None
    origin[owned] = places[order[after[owned]], rank[owned]]
    return None if (origin < 0).any() else origin


def agreement(before: Tensor, after: Tensor, origin: Owners, checked: NDArray[np.bool_] | None = None) -> Agreement:
    """Return whether rows, or those to be checked, are where they are expected: `after[i]` is `before[origin[i]]`."""
    expected, stayed = before[torch.from_numpy(origin).to(before.device)], before
    if checked is not None:
        chosen = torch.from_numpy(checked).to(before.device)
        expected, stayed, after = expected[chosen], stayed[chosen], after[chosen]
    deviation, change = _largest(after, expected), _largest(expected, stayed)
    half = before.dtype in (torch.float16, torch.bfloat16)
    allowed = (_HALF_TOLERANCE if half else _TOLERANCE) * float(_wide(before).square().mean().sqrt())
    if not deviation <= allowed:  # NaN, too
        return Agreement.NO
    return Agreement.YES if change > 0 and change >= _INFORMATIVE * deviation else Agreement.MAYBE


def _largest(one: Tensor, other: Tensor) -> float:
    """Return the largest rms of a row's difference."""
    if not one.numel():
        return 0.0
    return float((_wide(one) - _wide(other)).square().mean(dim=1).max().sqrt())


def _wide(rows: Tensor) -> Tensor:
    return rows.detach() if rows.dtype in (torch.float32, torch.float64) else rows.detach().double()


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()


def owners_of(digits: list[NDArray[np.int64]], base: int, batch: int) -> Owners:
    """Return whose rows are, from the powers that they were scaled by: one digit of the owner's number each.

    SHARED where a row was not scaled as one example's would be, NO_ERROR where nothing can be told.
    """
    stacked = np.stack(digits)  # (digits, rows)
    number = (stacked * base ** np.arange(len(digits))[:, None]).sum(axis=0)
    owners = np.where((stacked < 0).any(axis=0) | (number >= batch), SHARED, number)
    return np.where((stacked == NO_ERROR).all(axis=0), NO_ERROR, owners)
