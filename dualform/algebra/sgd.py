"""Write torch.optim.SGD as Steps: momentum, dampening, Nesterov, weight decay, maximize."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Number, Step

COLUMNS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "fresh")
MOMENTUM = "momentum_buffer"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the ledger line of one parameter, taken just before its step.

    `fresh` says that there is no momentum yet: torch then starts it at the gradient itself, undampened.
    """
    fresh = state.get(MOMENTUM) is None
    return (*(float(group[name]) for name in COLUMNS[:-1]), float(fresh))


def sign(line: Line) -> Number:
    return np.where(line["maximize"] != 0, -1.0, 1.0)


def decay(line: Line) -> Number:
    return line["weight_decay"]


def step(line: Line, moments: Moments) -> Step:
    """Return the Step of a ledger line; columns may be arrays over steps, over parameters, or both. No moments."""
    lr, mu = line["lr"], line["momentum"]
    moving = mu != 0
    starting = moving & (line["fresh"] != 0)
    nesterov = moving & (line["nesterov"] != 0)
    return Step(
        sign=sign(line),
        decay=decay(line),
        carry=np.where(starting, 0.0, np.where(moving, mu, 1.0)),
        intake=np.where(starting, 1.0, np.where(moving, 1.0 - line["dampening"], 0.0)),
        alpha=np.where(moving & ~nesterov, 0.0, lr),
        beta=np.where(nesterov, lr * mu, np.where(moving, lr, 0.0)),
    )


RULE = Rule(COLUMNS, read, step, MOMENTUM, sign=sign, decay=decay)
