"""Write torch.optim.Adagrad as Steps: learning rate decay, weight decay, maximize, any initial accumulator.

    v' = v + g^2
    W' = W - lr / (1 + (t - 1) lr_decay) g / (sqrt(v') + eps)

The accumulator starts at a value of the user's choice, so a fresh optimiser already has a state; it is in
the run's first snapshot.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dualform.algebra.elementwise import count, coupled, divided, numbers, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

COLUMNS = ("lr", "lr_decay", "eps", "weight_decay", "maximize", "count")
SQUARE = "sum"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return (*numbers(group, COLUMNS[:-1]), count(state))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    return {SQUARE: moments[SQUARE].addcmul(gradient, gradient)}


def step(line: Line, moments: Moments) -> Step:
    size = line["lr"] / (1 + line["count"] * line["lr_decay"])
    scale = divided(size, moments[SQUARE].sqrt().add_(line["eps"]), moments[SQUARE], line)
    return Step(sign=sign(line), decay=coupled(line), alpha=scale)


RULE = Rule(COLUMNS, read, step, None, (SQUARE,), advance, sign, coupled)
