"""Write torch.optim.RAdam as Steps: both weight decays, maximize.

    m' = beta1 m + (1 - beta1) g,   v' = beta2 v + (1 - beta2) g^2
    W' = keep W - lr / (1 - beta1^t) r_t m'

with r_t = rectification_t sqrt(1 - beta2^t) / (sqrt(v') + eps) once v' has seen enough steps; before, r_t = 1.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dualform.algebra.elementwise import averaging, betas, count, coupled, divided, numbers, running_square, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Number, Step

COLUMNS = ("lr", "eps", "weight_decay", "maximize", "decoupled_weight_decay", "beta1", "beta2", "count")
SQUARE = "exp_avg_sq"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return (*numbers(group, COLUMNS[:-3]), *betas(group), count(state))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    return {SQUARE: running_square(moments.get(SQUARE), gradient, line["beta2"])}


def step(line: Line, moments: Moments) -> Step:
    return averaging(line, beta=_scale(line, moments, line["lr"] / (1 - line["beta1"] ** (line["count"] + 1))))


def _scale(line: Line, moments: Moments, size: float) -> Number:
    """lr / (1 - beta1^t) r_t"""
    steps, beta2 = line["count"] + 1, line["beta2"]
    correction = 1 - beta2**steps
    longest = 2 / (1 - beta2) - 1  # the length of an average over endless time, and of the one over the steps so far
    length = longest - 2 * steps * beta2**steps / correction
    if length <= 5:
        return size
    above = (length - 4) * (length - 2) * longest
    below = (longest - 4) * (longest - 2) * length
    size *= (correction * above / below) ** 0.5
    return divided(size, moments[SQUARE].sqrt().add_(line["eps"]), moments[SQUARE], line)


RULE = Rule(COLUMNS, read, step, "exp_avg", (SQUARE,), advance, sign, coupled)
