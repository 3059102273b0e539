"""One optimiser step in one form, and the one adjoint that turns a run of steps into coefficients.

Every optimiser dualform knows changes a parameter W, given its raw gradient G, by

    g  = sign G + decay W
    m' = carry m + intake g
    W' = keep W - alpha g - beta m'

with scalars, or with anything that broadcasts: a column of one number per parameter, or matrices the
shape of W where an optimiser divides elementwise. After T such steps W is linear in all it has seen:

    W_T = initial W_0 + momentum m_0 + sum_t gradients[t] G_t
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Number = Any  # float, numpy array or tensor: the algebra only multiplies and adds


@dataclass(frozen=True)
class Step:
    """The numbers of one step; the defaults leave the parameter and its momentum as they are."""

    sign: Number = 1.0
    decay: Number = 0.0
    carry: Number = 1.0
    intake: Number = 0.0
    keep: Number = 1.0
    alpha: Number = 0.0
    beta: Number = 0.0


@dataclass(frozen=True)
class Coefficients:
    """What the optimiser has made of the initial weights, the initial momentum and each gradient."""

    initial: Number
    momentum: Number
    gradients: list[Number]


def adjoint(latest_first: Iterable[Step]) -> Coefficients:
    """Follow W_T back through the steps, latest first, and collect what each gradient is worth.

    >>> adjoint([Step(alpha=0.1)] * 2)
    Coefficients(initial=1.0, momentum=0.0, gradients=[-0.1, -0.1])
    """
    weight: Number = 1.0  # W_T's share of the W before the steps followed so far
    momentum: Number = 0.0  # and of the momentum before them
    gradients: list[Number] = []
    for step in latest_first:
        momentum = momentum - weight * step.beta
        gradient = step.sign * (step.intake * momentum - step.alpha * weight)
        weight = step.keep * weight + (step.decay / step.sign) * gradient
        momentum = step.carry * momentum
        gradients.append(gradient)
    return Coefficients(weight, momentum, gradients[::-1])
