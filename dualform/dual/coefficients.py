"""Turn ledger lines into coefficients: what a linear optimiser had made of each step's gradient, in numbers.

Of one that divides elementwise, coefficients are matrices; replay.py makes them one after the other.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dualform.algebra import Rule, coefficients, rule_named
from dualform.errors import NotRecorded, RunError, listing
from dualform.slots.blocks import Block, keys_only
from dualform.store import Layer, Parameter, Run, Use
from dualform.store.schema import MANIFEST

Array = NDArray[np.float64]


def rule_of(run: Run, layer: Layer) -> Rule:
    """Return the algebra of the optimiser that trained a layer: one for all its parameters."""
    if not run.manifest.storage.values:
        raise NotRecorded(f"{keys_only(run)}: no coefficients")
    return parameter_rule(run, layer.trained[0].parameter)


def parameter_rule(run: Run, parameter: Parameter) -> Rule:
    """Return the algebra of the optimiser that trained a parameter."""
    assert parameter.optimizer is not None
    optimizer = run.manifest.optimizers[parameter.optimizer]
    rule = rule_named(optimizer.kind)
    if rule is None or rule.columns != optimizer.columns:
        raise RunError(
            f"{run.backend.describe(MANIFEST)} says that {parameter.name!r} was trained by {optimizer.kind!r} with "
            f"{listing(optimizer.columns)}: this dualform does not know it, upgrade with pip install --upgrade "
            "dualform, or register it first"
        )
    return rule


@dataclass(frozen=True)
class ParameterCoefficients:
    """W_until = initial W_since + momentum m_since + sum over steps of gradients[step - since] G_step."""

    since: int
    initial: float
    momentum: float
    gradients: Array  # (until - since,)

    def at(self, steps: NDArray[np.int64]) -> Array:
        """Return the coefficient of each of these steps; 0 for steps outside of the span."""
        inside = (steps >= self.since) & (steps < self.since + len(self.gradients))
        padded = np.append(self.gradients, 0.0)
        result: Array = padded[np.where(inside, steps - self.since, len(self.gradients))]
        return result

    def of(self, block: Block, use: Use) -> Array:
        """Return what each slot counts for in the parameter: its step's coefficient times its pass' factor."""
        with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
            return self.at(block.steps) * block.factors(use)


class Ledger:
    """All ledger lines of a run. `between` is remembered, since every question asks for it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lines = lru_cache(maxsize=None)(run.ledger)  # put together once, not once for each chapter
        self.between = lru_cache(maxsize=64)(self._between)

    def _between(self, rule: Rule, optimizer: int, since: int, until: int) -> dict[str, ParameterCoefficients]:
        """Return the coefficients of steps [since, until) at `until`, for each parameter of a linear optimiser."""
        described = self._run.manifest.optimizers[optimizer]
        names = [parameter.name for parameter in self._run.manifest.parameters if parameter.optimizer == optimizer]
        lines = np.zeros((0, len(names), 1 + len(described.columns)))
        if until > since:
            lines = np.stack([self._lines(name)[since:until] for name in names], axis=1)
        with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
            of_all = coefficients(rule, lines)
        initial = np.broadcast_to(of_all.initial, len(names)).tolist()
        momentum = np.broadcast_to(of_all.momentum, len(names)).tolist()
        gradients = np.array(of_all.gradients).reshape(until - since, len(names))
        return {
            name: ParameterCoefficients(since, initial[i], momentum[i], gradients[:, i]) for i, name in enumerate(names)
        }
