"""Write torch.optim.Adadelta as Steps: weight decay, maximize.

    v' = rho v + (1 - rho) g^2
    W' = W - lr r g,   r = sqrt(a + eps) / sqrt(v' + eps),   a' = rho a + (1 - rho) (r g)^2

What it multiplies by depends on the updates so far; so these are replayed too, and r goes with the moments of its step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.elementwise import coupled, numbers, running_square, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

COLUMNS = ("lr", "rho", "eps", "weight_decay", "maximize")
SQUARE, UPDATES = "square_avg", "acc_delta"
_RATE = "rate"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return numbers(group, COLUMNS)


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    rho, eps = line["rho"], line["eps"]
    square = running_square(moments.get(SQUARE), gradient, rho)
    before = moments.get(UPDATES)
    rate = (torch.zeros_like(gradient) if before is None else before).add(eps).sqrt_().div_(square.add(eps).sqrt_())
    return {SQUARE: square, UPDATES: running_square(before, rate * gradient, rho), _RATE: rate}


def step(line: Line, moments: Moments) -> Step:
    return Step(sign=sign(line), decay=coupled(line), alpha=moments[_RATE] * line["lr"])


RULE = Rule(COLUMNS, read, step, None, (SQUARE, UPDATES), advance, sign, coupled)
