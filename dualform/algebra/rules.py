"""The optimisers dualform knows, each as a Rule: how to read its ledger line and what step that makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.algebra import sgd
from dualform.algebra.step import Coefficients, Step, adjoint

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """An optimiser: the names in its ledger lines, the reader that fills them, the step they mean."""

    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[float, ...]]
    step: Callable[[Mapping[str, Array]], Step]
    momentum: str  # the entry of torch's optimiser state that is m of the Step form


RULES: dict[str, Rule] = {
    "SGD": Rule(sgd.COLUMNS, sgd.read, sgd.step, sgd.MOMENTUM),
}


def coefficients(rule: Rule, ledger: Array) -> Coefficients:
    """Coefficients after all steps of a ledger.

    `ledger` is (steps, parameters, 1 + columns); its first column says whether the parameter was
    stepped at all: torch leaves a parameter without a gradient alone, momentum and decay included.
    """
    steps = rule.step({name: ledger[:, :, 1 + i] for i, name in enumerate(rule.columns)})
    idle = ledger[:, :, 0] == 0
    table = {f.name: _column(getattr(steps, f.name), f.default, idle) for f in fields(Step)}
    latest_first = (Step(**{name: column[t] for name, column in table.items()}) for t in reversed(range(len(ledger))))
    return adjoint(latest_first)


def _column(given: Any, default: Any, idle: NDArray[np.bool_]) -> Array:
    return np.where(idle, default, np.broadcast_to(given, idle.shape))


def known() -> Sequence[str]:
    """Names of the optimisers whose runs have an exact dual form."""
    return [f"torch.optim.{name}" for name in RULES]
