"""Write every optimiser step in one form, and turn a run of steps into coefficients by one adjoint.

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
    rest: float = 0.0  # times the remainder of the step, where an optimiser has one: it is subtracted too

    def forwards(self, weight: Number, momentum: Number, g: Number) -> tuple[Number, Number]:
        """Return W' and m'."""
        momentum = self.carry * momentum + self.intake * g
        return self.keep * weight - self.alpha * g - self.beta * momentum, momentum


@dataclass(frozen=True)
class Coefficients:
    """What the optimiser has made of the initial weights, the initial momentum and each gradient."""

    initial: Number
    momentum: Number
    gradients: list[Number]


class Adjoint:
    """Follows W_T back through its steps, latest first; `back` returns the coefficient of a step's gradient."""

    def __init__(self) -> None:
        self.weight: Number = 1.0  # W_T's share of the W before the steps followed so far
        self.momentum: Number = 0.0  # and of the momentum before them

    def back(self, step: Step) -> Number:
        """Return the coefficient of the gradient of the step before those followed so far; the caller may keep it.

        Matrices are changed in place and zeros left out: a fresh matrix costs more than what is done to it.
        """
        if not _is_zero(step.beta):
            self.momentum -= self.weight * step.beta
        gradient: Number = self.momentum * (step.sign * step.intake)
        if not _is_zero(step.alpha):
            gradient -= self.weight * (step.sign * step.alpha)
        self.weight *= step.keep
        if not _is_zero(step.decay):
            self.weight = self.weight + (step.decay / step.sign) * gradient
        self.momentum *= step.carry
        return gradient


def _is_zero(number: Number) -> bool:
    """Return whether a term can be left out."""
    return isinstance(number, float) and number == 0.0


def adjoint(latest_first: Iterable[Step]) -> Coefficients:
    """Return all coefficients of a run of steps, where they are few numbers.

    >>> adjoint([Step(alpha=0.1)] * 2)
    Coefficients(initial=1.0, momentum=0.0, gradients=[-0.1, -0.1])
    """
    run = Adjoint()
    gradients = [run.back(step) for step in latest_first]
    return Coefficients(run.weight, run.momentum, gradients[::-1])
