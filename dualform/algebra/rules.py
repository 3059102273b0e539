"""The optimisers dualform knows by torch's names, and the coefficients that linear ones make of a ledger."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.algebra import adagrad, adam, nadam, radam, rmsprop, sgd
from dualform.algebra.rule import Rule
from dualform.algebra.step import Coefficients, Step, adjoint

Array = NDArray[np.float64]

RULES: dict[str, Rule] = {
    "SGD": sgd.RULE,
    "Adam": adam.ADAM,
    "AdamW": adam.ADAMW,
    "NAdam": nadam.RULE,
    "RAdam": radam.RULE,
    "RMSprop": rmsprop.RULE,
    "Adagrad": adagrad.RULE,
}


def coefficients(rule: Rule, ledger: Array) -> Coefficients:
    """A linear optimiser's coefficients after all steps of a ledger.

    `ledger` is (steps, parameters, 1 + columns); its first column says whether the parameter was
    stepped at all: torch leaves a parameter without a gradient alone, momentum and decay included.
    """
    steps = rule.step({name: ledger[:, :, 1 + i] for i, name in enumerate(rule.columns)}, {})
    idle = ledger[:, :, 0] == 0
    table = {f.name: _column(getattr(steps, f.name), f.default, idle) for f in fields(Step)}
    latest_first = (Step(**{name: column[t] for name, column in table.items()}) for t in reversed(range(len(ledger))))
    return adjoint(latest_first)


def _column(given: Any, default: Any, idle: NDArray[np.bool_]) -> Array:
    return np.where(idle, default, np.broadcast_to(given, idle.shape))


def known() -> Sequence[str]:
    """Names of the optimisers whose runs have an exact dual form."""
    return [f"torch.optim.{name}" for name in RULES]
