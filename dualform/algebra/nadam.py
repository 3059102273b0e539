"""Write torch.optim.NAdam as Steps: both weight decays, momentum decay, maximize.

    mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2),   P_t = mu_1 ... mu_t
    m' = beta1 m + (1 - beta1) g,   v' = beta2 v + (1 - beta2) g^2,   D = sqrt(v' / (1 - beta2^t)) + eps
    W' = keep W - lr (1 - mu_t) / (1 - P_t) g / D - lr mu_{t+1} / (1 - P_t mu_{t+1}) m' / D

torch keeps P in its default precision, mostly float32, and rounds it there; so do we.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualform.algebra.elementwise import averaging, betas, count, coupled, divided, numbers, running_square, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

_OPTIONS = ("lr", "eps", "weight_decay", "momentum_decay", "maximize", "decoupled_weight_decay")
COLUMNS = (*_OPTIONS, "beta1", "beta2", "count", "mu_product", "single")
SQUARE = "exp_avg_sq"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    product = state.get("mu_product")
    precision = torch.get_default_dtype() if product is None else product.dtype
    so_far = 1.0 if product is None else float(product)
    return (*numbers(group, _OPTIONS), *betas(group), count(state), so_far, float(precision != torch.float64))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    return {SQUARE: running_square(moments.get(SQUARE), gradient, line["beta2"])}


def step(line: Line, moments: Moments) -> Step:
    steps, lr = line["count"] + 1, line["lr"]
    mu, coming = _mu(line, steps), _mu(line, steps + 1)
    precision = np.float32 if line["single"] else np.float64
    product = float(precision(line["mu_product"]) * precision(mu))
    divisor = moments[SQUARE].div(1 - line["beta2"] ** steps).sqrt_().add_(line["eps"])
    scale = divided(1.0, divisor, moments[SQUARE], line)
    return averaging(
        line,
        alpha=scale * (lr * (1 - mu) / (1 - product)),
        beta=scale * (lr * coming / (1 - product * coming)),
    )


def _mu(line: Line, steps: float) -> float:
    return float(line["beta1"] * (1 - 0.5 * 0.96 ** (steps * line["momentum_decay"])))


RULE = Rule(COLUMNS, read, step, "exp_avg", (SQUARE,), advance, sign, coupled)
