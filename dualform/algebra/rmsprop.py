"""Write torch.optim.RMSprop as Steps: momentum, centred or not, weight decay, maximize.

    v' = alpha v + (1 - alpha) g^2
    m' = momentum m + g / (sqrt(v') + eps)
    W' = W - lr m'

Without momentum it is W' = W - lr g / (sqrt(v') + eps); centred, v' less the square of the running mean of g.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dualform.algebra.elementwise import coupled, divided, numbers, running_square, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

COLUMNS = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize")
SQUARE, MEAN = "square_avg", "grad_avg"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return numbers(group, COLUMNS)


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    share = line["alpha"]
    square = running_square(moments.get(SQUARE), gradient, share)
    if not line["centered"]:
        return {SQUARE: square}
    mean = moments[MEAN].lerp(gradient, 1 - share) if MEAN in moments else gradient * (1 - share)
    return {SQUARE: square, MEAN: mean}


def step(line: Line, moments: Moments) -> Step:
    square = moments[SQUARE]
    if line["centered"]:
        square = square.addcmul(moments[MEAN], moments[MEAN], value=-1)
    scale = divided(1.0, square.sqrt().add_(line["eps"]), moments[SQUARE], line)
    if line["momentum"] > 0:
        return Step(
            sign=sign(line), decay=coupled(line), carry=line["momentum"], intake=scale, beta=line["lr"]
        )  # fmt: skip
    return Step(sign=sign(line), decay=coupled(line), alpha=scale.mul_(line["lr"]))


RULE = Rule(COLUMNS, read, step, "momentum_buffer", (SQUARE, MEAN), advance, sign, coupled)
