"""How far the dual form of a parameter is from the primal one, and when that is near enough."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Distance:
    """Of one parameter over one stretch of steps, in the Frobenius norm."""

    error: float  # |dual - primal|
    change: float  # |W_T - W_0|
    floor: float  # what rounding can add up to

    @property
    def no_net_gradient(self) -> bool:
        """The parameter did not move beyond rounding, like a bias before a BatchNorm: nothing to compare."""
        return self.change <= self.floor

    @property
    def relative(self) -> float:
        return 0.0 if self.no_net_gradient and self.error <= self.floor else self.error / max(self.change, 1e-300)

    def ok(self, tolerance: float) -> bool:
        return self.error <= max(tolerance * self.change, self.floor) < math.inf  # nothing is near to infinity


@dataclass(frozen=True)
class Stretch:
    """The distances of a layer's trained parameters over steps [first_step, last_step)."""

    first_step: int
    last_step: int
    parameters: dict[str, Distance]

    @property
    def relative_error(self) -> float:
        return max(distance.relative for distance in self.parameters.values())

    def ok(self, tolerance: float) -> bool:
        return all(distance.ok(tolerance) for distance in self.parameters.values())


def distance(dual: Tensor, before: Tensor, after: Tensor, floor: float) -> Distance:
    """Of a parameter rebuilt from its slots to what training made of it; or of both seen through probes."""
    error = float((dual - after).norm())
    return Distance(error if math.isfinite(error) else math.inf, float((after - before).norm()), floor)


def rounding_of_slots(squares: float, eps: float) -> float:
    """Every slot is rounded, by training and by storage: independent errors of what it adds.

    `squares` is the sum of the squared sizes of what slots have added, each by itself.
    """
    return 4 * eps * math.sqrt(squares)


def rounding_of_weights(steps: int, after: Tensor, eps: float, decayed: int = 0) -> float:
    """Every weight is rounded once a step. These errors are independent, but in `decayed` steps.

    There weights were multiplied by a number close to 1 first. One that hardly moves is then rounded the same
    way, by up to half of eps, every time.
    """
    return float(after.norm()) * eps * (4 * math.sqrt(steps) + 0.5 * decayed)
