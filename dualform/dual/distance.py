"""Measure how far the dual form of a parameter is from the primal one, and decide when that is near enough."""

import math
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Distance:
    """How far a parameter is from its dual form over a span of steps, in the Frobenius norm."""

    error: float  # |dual - primal|
    change: float  # |W_T - W_0|
    floor: float  # what rounding can add up to
    rounding: float = 0.0  # |what rounding to half precision added|: it is part of the dual form, in no slot

    @property
    def no_net_gradient(self) -> bool:
        """Whether it did not move beyond rounding, like a bias before a BatchNorm: there is nothing to compare."""
        return self.change <= self.floor

    @property
    def relative(self) -> float:
        return 0.0 if self.no_net_gradient and self.error <= self.floor else self.error / max(self.change, 1e-300)

    def ok(self, tolerance: float) -> bool:
        """Return whether the error is within the tolerance, or explained by rounding."""
        return self.error <= max(tolerance * self.change, self.floor) < math.inf  # nothing is near to infinity


@dataclass(frozen=True)
class SpanCertificate:
    """The distances of a layer's trained parameters over steps [first_step, last_step)."""

    first_step: int
    last_step: int
    parameters: dict[str, Distance]

    @property
    def relative_error(self) -> float:
        return max(distance.relative for distance in self.parameters.values())

    def ok(self, tolerance: float) -> bool:
        """Return whether all of them are within the tolerance, or explained by rounding."""
        return all(distance.ok(tolerance) for distance in self.parameters.values())

    def without_floor(self) -> "SpanCertificate":
        """Return the same distances, of which rounding explains nothing."""
        return replace(self, parameters={name: replace(d, floor=0.0) for name, d in self.parameters.items()})


def distance(dual: Tensor, before: Tensor, after: Tensor, floor: float, rounding: float = 0.0) -> Distance:
    """Compare a parameter rebuilt from its slots with what training made of it; or both, seen through probes."""
    error = float((dual - after).norm())
    return Distance(error if math.isfinite(error) else math.inf, float((after - before).norm()), floor, rounding)


def rounding_of_slots(squares: float, eps: float) -> float:
    """Return what the rounding of slots, by training and by storage, can add up to: their errors are independent.

    Args:
        squares: The sum of the squared sizes of what slots have added, each by itself.
        eps: The coarser of both precisions.
    """
    return 4 * eps * math.sqrt(squares)


def rounding_of_weights(steps: int, after: Tensor, eps: float, decayed: int = 0) -> float:
    """Return what rounding every weight once a step can add up to: independent errors, but in `decayed` steps.

    In those, weights were multiplied by a number close to 1 first. A weight that hardly moves is then rounded the
    same way, by up to half of eps, every time.
    """
    return float(after.norm()) * eps * (4 * math.sqrt(steps) + 0.5 * decayed)
