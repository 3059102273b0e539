"""Write torch.optim.Adamax as Steps: weight decay, maximize.

m' = beta1 m + (1 - beta1) g,   n' = max(beta2 n, |g| + eps)
W' = W - lr / (1 - beta1^t) m' / n'
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.elementwise import averaging, betas, count, coupled, numbers, running_mean, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

COLUMNS = ("lr", "eps", "weight_decay", "maximize", "beta1", "beta2", "count")
LARGEST, MEAN = "exp_inf", "exp_avg"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return (*numbers(group, COLUMNS[:-3]), *betas(group), count(state))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    largest = gradient.abs().add_(line["eps"])
    if LARGEST in moments:
        largest = torch.maximum(moments[LARGEST] * line["beta2"], largest)
    return {LARGEST: largest, MEAN: running_mean(moments.get(MEAN), gradient, 1 - line["beta1"])}


def step(line: Line, moments: Moments) -> Step:
    scale = line["lr"] / (1 - line["beta1"] ** (line["count"] + 1)) / moments[LARGEST]
    if coupled(line):  # what never had a gradient stays what it is, as for other optimisers that divide
        scale.masked_fill_(moments[MEAN] == 0, 0.0)
    return averaging(line, beta=scale)


RULE = Rule(COLUMNS, read, step, MEAN, (LARGEST, MEAN), advance, sign, coupled)
