"""Write torch.optim.Muon as Steps: momentum, Nesterov, decoupled decay, both adjustments of the learning rate.

    m' = mu m + (1 - mu) g,   u = (1 - mu) g + mu m' (Nesterov), or m'
    W' = k W - lr' O,   O = the polynomial in u u^T that Newton and Schulz iterate, times u

So O is P u, with a matrix P that is known from the replayed u; from the right, u P, where u has more rows than columns.
alpha and beta of the Step are such matrices. torch iterates in bfloat16: O less P u, about a hundredth of it, is the
remainder of a step, which only the recorder can tell.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.elementwise import numbers, running_mean
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

_OPTIONS = ("lr", "weight_decay", "momentum", "nesterov", "eps", "ns_steps")
COLUMNS = (*_OPTIONS, "a", "b", "c", "match_rms")
MEAN = "momentum_buffer"
_UPDATE = "update"
_MAX_STEPS = 99  # that torch allows


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    matched = group["adjust_lr_fn"] == "match_rms_adamw"
    return (*numbers(group, _OPTIONS), *map(float, group["ns_coefficients"]), float(matched))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    mean = running_mean(moments.get(MEAN), gradient, 1 - line["momentum"])
    return {MEAN: mean, _UPDATE: _update(line, gradient, mean)}


def _update(line: Line, gradient: Tensor, mean: Tensor) -> Tensor:
    return gradient.lerp(mean, line["momentum"]) if line["nesterov"] else mean


def step(line: Line, moments: Moments) -> Step:
    update, mu = moments[_UPDATE], line["momentum"]
    rows, columns = update.shape
    ratio = 0.2 * max(rows, columns) ** 0.5 if line["match_rms"] else max(1.0, rows / columns) ** 0.5
    size = float(line["lr"] * ratio)
    polynomial = _iterated(update, line)[1]
    return Step(
        carry=float(mu),
        intake=float(1 - mu),
        keep=float(1 - line["lr"] * line["weight_decay"]),
        alpha=polynomial * (size * (1 - mu)) if line["nesterov"] else 0.0,
        beta=polynomial * (size * mu if line["nesterov"] else size),
        rest=size,
    )


def remainder(line: Line, gradient: Tensor, moments: Moments) -> Tensor:
    """Return what torch's bfloat16 leaves outside of P u in one step, given the momentum after it."""
    update = _update(line, gradient, moments[MEAN])
    rounded = _iterated(update, line, torch.bfloat16)[0]
    return rounded.to(update.dtype) - _iterated(update, line)[0]


def _iterated(update: Tensor, line: Line, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return P u and P, by the operations torch takes; in a dtype of its own P is of no use, and not made."""
    tall = update.shape[0] > update.shape[1]
    copied = update.to(dtype or update.dtype, copy=True)
    turned = copied.T if tall else copied
    norm = turned.norm().clamp(min=line["eps"])
    turned.div_(norm)
    polynomial = torch.eye(len(turned), dtype=turned.dtype, device=turned.device).div_(norm)
    for _ in range(int(min(max(0.0, line["ns_steps"]), _MAX_STEPS))):  # whatever a file says
        gram = turned @ turned.T
        factor = torch.addmm(gram, gram, gram, beta=line["b"], alpha=line["c"])
        turned = torch.addmm(turned, factor, turned, beta=line["a"])
        if dtype is None:
            polynomial = torch.addmm(polynomial, factor, polynomial, beta=line["a"])
    return turned.T if tall else turned, polynomial


RULE = Rule(COLUMNS, read, step, MEAN, (MEAN,), advance, joint=True, matrices=True, remainder=remainder)
