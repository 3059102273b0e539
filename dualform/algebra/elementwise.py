"""Compute what optimisers that divide elementwise have in common: sign, two weight decays, running squares."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dualform.algebra.rule import Line
from dualform.algebra.step import Number, Step


def numbers(group: Mapping[str, Any], names: Sequence[str]) -> tuple[float, ...]:
    """Return hyper-parameters by value, tensors too; an option that an older torch does not have is off."""
    return tuple(float(group.get(name, False)) for name in names)


def betas(group: Mapping[str, Any]) -> tuple[float, float]:
    beta1, beta2 = group["betas"]
    return float(beta1), float(beta2)


def count(state: Mapping[str, Any]) -> float:
    """Return how many steps the parameter had before this one: torch counts for each parameter."""
    return float(state.get("step", 0))


def sign(line: Line) -> float:
    return -1.0 if line["maximize"] else 1.0


def coupled(line: Line) -> float:
    """Return the weight decay that goes through the gradient, and so through the moments."""
    return 0.0 if line.get("decoupled_weight_decay") else float(line["weight_decay"])


def kept(line: Line) -> float:
    """Return what decoupled weight decay leaves of the weights."""
    return float(1.0 - line["lr"] * line["weight_decay"]) if line.get("decoupled_weight_decay") else 1.0


def running_square(before: Tensor | None, gradient: Tensor, share: float) -> Tensor:
    """Return share v + (1 - share) g^2, by the operations torch uses."""
    if before is None:
        return gradient.square().mul_(1.0 - share)
    return (before * share).addcmul_(gradient, gradient, value=1.0 - share)


def running_mean(before: Tensor | None, gradient: Tensor, share: float) -> Tensor:
    """Return (1 - share) m + share g, by the operation torch uses, which begins at zero."""
    return (torch.zeros_like(gradient) if before is None else before).lerp(gradient, share)


def averaging(line: Line, *, alpha: Number = 0.0, beta: Number) -> Step:
    """Return the Step of Adam and its kin, whose momentum is a running mean of the gradient."""
    beta1 = line["beta1"]
    return Step(sign(line), coupled(line), carry=beta1, intake=1 - beta1, keep=kept(line), alpha=alpha, beta=beta)


def divided(size: float, divisor: Tensor, square: Tensor, line: Line) -> Tensor:
    """Return size / divisor, in place; under coupled decay, nothing where the running square is zero.

    There, every gradient so far was zero, and so is the weight that would decay, as in the padding row of an embedding:
    it stays what it is. A divisor of eps would make a number that grows with every step, to be multiplied by zero.
    """
    quotient = divisor.reciprocal_().mul_(size)
    return quotient.masked_fill_(square == 0, 0.0) if coupled(line) else quotient


def of_sign(size: Tensor | float, by: Tensor) -> Tensor:
    """Return size / |by|, which times `by` is size sign(by): nothing where `by` is 0, or so small that it overflows."""
    quotient = size / by.abs()
    return quotient.masked_fill_(quotient.isinf() | (by == 0), 0.0)
