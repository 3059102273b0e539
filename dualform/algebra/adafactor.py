"""Write torch.optim.Adafactor as Steps: factored second moments, clipping by their size, decay, maximize.

    V = r c / mean(r):  r, c running means of g^2 over rows, over columns; of a vector, the running mean of g^2 itself
    u = g / sqrt(max(V, eps1^2)),   a = max(eps2, rms(W)) min(lr, 1 / sqrt(t)) / max(1, rms(u) / d)
    W' = (1 - lr decay) W - a u

Every entry of a parameter depends on all others, and the size of a step on that of the weights: both are replayed as a
whole. The factor of g goes with the moments of its step.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.elementwise import count, numbers, running_mean, sign
from dualform.algebra.rule import WEIGHT, Line, Moments, Rule
from dualform.algebra.step import Step

_OPTIONS = ("lr", "beta2_decay", "d", "weight_decay", "maximize")
COLUMNS = (*_OPTIONS, "eps1", "eps2", "count")
ROWS, COLUMN_MEANS, VECTOR = "row_var", "col_var", "variance"
_RATE = "rate"
_OF_PRECISION = -1.0  # eps1 of a state that is not there yet


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the ledger line. Without an eps1 of the user's, torch takes what rounding weights costs."""
    eps1, eps2 = group["eps"]
    if eps1 is None:
        entry = state.get(ROWS, state.get(VECTOR))
        eps1 = _OF_PRECISION if entry is None else torch.finfo(entry.dtype).eps
    return (*numbers(group, _OPTIONS), float(eps1), float(eps2), count(state))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    steps, weight = line["count"] + 1, moments[WEIGHT]
    eps1 = torch.finfo(gradient.dtype).eps if line["eps1"] == _OF_PRECISION else line["eps1"]
    after, estimate = _second_moment(gradient, moments, steps ** line["beta2_decay"], eps1)
    rate = estimate.clamp_(min=eps1 * eps1).rsqrt_()
    size = max(line["eps2"], _root_mean_square(weight)) * min(line["lr"], 1 / steps**0.5)
    return {**after, _RATE: rate.mul_(size / max(1.0, _root_mean_square(rate * gradient) / line["d"]))}


def _second_moment(gradient: Tensor, moments: Moments, share: float, eps1: float) -> tuple[dict[str, Tensor], Tensor]:
    """Return what is kept of the squares of gradients, and the estimate that it makes."""
    if gradient.dim() < 2:
        square = running_mean(moments.get(VECTOR), gradient * gradient, share)
        return {VECTOR: square}, square.clone()
    of_rows, of_columns = (
        torch.linalg.vector_norm(gradient, dim=dim, keepdim=True).square_().div_(gradient.shape[dim])
        for dim in (-1, -2)
    )
    rows = running_mean(moments.get(ROWS), of_rows, share)
    columns = running_mean(moments.get(COLUMN_MEANS), of_columns, share)
    estimate = (rows @ columns).div_(rows.mean(dim=-2, keepdim=True).clamp_(min=eps1))
    return {ROWS: rows, COLUMN_MEANS: columns}, estimate


def _root_mean_square(matrix: Tensor) -> float:
    return float(matrix.norm(2)) / math.sqrt(matrix.numel())


def step(line: Line, moments: Moments) -> Step:
    return Step(sign=sign(line), keep=float(1 - line["lr"] * line["weight_decay"]), alpha=moments[_RATE])


RULE = Rule(
    COLUMNS, read, step, None, (ROWS, COLUMN_MEANS, VECTOR), advance, sign, reads_weight=True, joint=True
)  # fmt: skip
