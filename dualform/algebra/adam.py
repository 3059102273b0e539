"""Write torch.optim.Adam and AdamW as Steps: both weight decays, amsgrad, maximize.

    v' = beta2 v + (1 - beta2) g^2
    m' = beta1 m + (1 - beta1) g
    W' = keep W - lr / (1 - beta1^t) m' / (sqrt(v') / sqrt(1 - beta2^t) + eps)

amsgrad divides by the root of the largest v' so far.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.elementwise import averaging, betas, count, coupled, divided, numbers, running_square, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

COLUMNS = ("lr", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay", "beta1", "beta2", "count")
SQUARE, LARGEST = "exp_avg_sq", "max_exp_avg_sq"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return (*numbers(group, COLUMNS[:-3]), *betas(group), count(state))


def read_decoupled(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    """Read AdamW, which in older torch does not say that its decay is decoupled."""
    return read({**group, "decoupled_weight_decay": True}, state)


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    square = running_square(moments.get(SQUARE), gradient, line["beta2"])
    if not line["amsgrad"]:
        return {SQUARE: square}
    return {SQUARE: square, LARGEST: torch.maximum(moments[LARGEST], square) if LARGEST in moments else square}


def step(line: Line, moments: Moments) -> Step:
    steps = line["count"] + 1
    size = line["lr"] / (1 - line["beta1"] ** steps)
    square = moments[LARGEST if line["amsgrad"] else SQUARE]
    divisor = square.sqrt().div_((1 - line["beta2"] ** steps) ** 0.5).add_(line["eps"])
    return averaging(line, beta=divided(size, divisor, square, line))


ADAM = Rule(COLUMNS, read, step, "exp_avg", (SQUARE, LARGEST), advance, sign, coupled)
ADAMW = Rule(COLUMNS, read_decoupled, step, "exp_avg", (SQUARE, LARGEST), advance, sign, coupled)
