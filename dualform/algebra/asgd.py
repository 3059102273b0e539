"""Write torch.optim.ASGD as Steps: its falling step size, weight decay, maximize.

    g = s G + w W
    W' = (1 - lambd eta) W - eta g,   eta' = lr / (1 + lambd lr t)^alpha

The average it keeps beside the weights does not come back to them. torch keeps eta in its default precision, and
multiplies weights in their own: both are read as they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Number, Step

COLUMNS = ("eta", "keep", "weight_decay", "maximize")
_AVERAGE = "ax"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    eta = float(state.get("eta", torch.tensor(float(group["lr"]))))
    keep = 1 - float(group["lambd"]) * eta
    if _AVERAGE in state:  # a number close to 1 loses most by its precision, and in every step the same
        keep = float(torch.tensor(keep, dtype=state[_AVERAGE].dtype))
    return eta, keep, float(group["weight_decay"]), float(group["maximize"])


def sign(line: Line) -> Number:
    return np.where(line["maximize"] != 0, -1.0, 1.0)


def decay(line: Line) -> Number:
    return line["weight_decay"]


def step(line: Line, moments: Moments) -> Step:
    return Step(sign=sign(line), decay=decay(line), keep=line["keep"], alpha=line["eta"])


RULE = Rule(COLUMNS, read, step, None, sign=sign, decay=decay)
