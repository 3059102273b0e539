"""Write torch.optim.Rprop as Steps: both factors, both limits, maximize.

    z' = z times etaplus where g is of the same sign as in the step before, times etaminus where it has flipped; limited
    W' = W - z' sign(g), and W' = W where it has flipped

A sign is g / |g|, so the coefficient is z' / |g|: nothing where g is 0. After a flip torch takes g for 0, then and in
the next step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.elementwise import numbers, of_sign, sign
from dualform.algebra.rule import Line, Moments, Rule
from dualform.algebra.step import Step

COLUMNS = ("lr", "maximize", "shrink", "grow", "least", "most")
BEFORE, SIZE = "prev", "step_size"


def read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return (*numbers(group, COLUMNS[:2]), *map(float, (*group["etas"], *group["step_sizes"])))


def advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    size = moments[SIZE] if SIZE in moments else torch.full_like(gradient, line["lr"])
    agreement = (gradient * moments[BEFORE]).sign_() if BEFORE in moments else torch.zeros_like(gradient)
    factor = torch.ones_like(gradient)
    factor[agreement > 0], factor[agreement < 0] = line["grow"], line["shrink"]
    size = (size * factor).clamp_(line["least"], line["most"])
    return {SIZE: size, BEFORE: gradient.masked_fill(agreement < 0, 0.0)}


def step(line: Line, moments: Moments) -> Step:
    return Step(sign=sign(line), alpha=of_sign(moments[SIZE], moments[BEFORE]))


RULE = Rule(COLUMNS, read, step, None, (BEFORE, SIZE), advance, sign)
