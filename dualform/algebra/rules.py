"""Look up optimisers by name, and compute the coefficients that linear ones make of a ledger.

    register(MyOptimizer, RULE)         # before recording, and before reading what was recorded
    rule_named("Adam")                  # as a manifest names it

A manifest names torch's own by their class, `Adam`, and others in full, `package.module.MyOptimizer`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from dualform.algebra import adadelta, adafactor, adagrad, adam, adamax, asgd, muon, nadam, radam, rmsprop, rprop, sgd
from dualform.algebra.rule import Rule
from dualform.algebra.step import Coefficients, Step, adjoint

Array = NDArray[np.float64]

_NAMES: dict[type[Optimizer], str] = {}  # of all registered classes
_RULES: dict[str, Rule] = {}
RULES: Mapping[str, Rule] = MappingProxyType(_RULES)  # by name; to be read only


def register(optimizer: type[Optimizer], rule: Rule) -> None:
    """Make a class of optimisers known; it replaces one of the same name.

        dualform.algebra.register(MyOptimizer, RULE)     # before recording, and before reading what was recorded

    Args:
        optimizer: The class; classes derived from it without a step of their own are known with it.
        rule: Its algebra.
    """
    ours = f"{optimizer.__module__}.".startswith("torch.optim.")
    name = optimizer.__name__ if ours else f"{optimizer.__module__}.{optimizer.__qualname__}"
    _NAMES[optimizer], _RULES[name] = name, rule


def unregister(optimizer: type[Optimizer]) -> None:
    """Forget a class of optimisers."""
    del _RULES[_NAMES.pop(optimizer)]


for _class, _rule in (
    (torch.optim.SGD, sgd.RULE),
    (torch.optim.Adam, adam.ADAM),
    (torch.optim.AdamW, adam.ADAMW),
    (torch.optim.NAdam, nadam.RULE),
    (torch.optim.RAdam, radam.RULE),
    (torch.optim.RMSprop, rmsprop.RULE),
    (torch.optim.Adagrad, adagrad.RULE),
    (torch.optim.Adadelta, adadelta.RULE),
    (torch.optim.Adamax, adamax.RULE),
    (torch.optim.Adafactor, adafactor.RULE),
    (torch.optim.Rprop, rprop.RULE),
    (torch.optim.ASGD, asgd.RULE),
):
    register(_class, _rule)
if hasattr(torch.optim, "Muon"):  # an older torch has none
    register(torch.optim.Muon, muon.RULE)


def rule_named(name: str) -> Rule | None:
    """Return the rule of an optimiser that a manifest names; None: it is not known."""
    return _RULES.get(name)


def registered_base(optimizer: type[Optimizer]) -> type[Optimizer] | None:
    """Return the class itself, if it is registered, or the nearest one it is derived from."""
    return next((base for base in optimizer.__mro__ if base in _NAMES), None)


def registered_name(optimizer: type[Optimizer]) -> str:
    """Return the name of a registered class, as manifests have it."""
    return _NAMES[optimizer]


def coefficients(rule: Rule, ledger: Array) -> Coefficients:
    """Return a linear optimiser's coefficients after all steps of a ledger.

    Args:
        rule: The optimiser.
        ledger: (steps, parameters, 1 + columns). Its first column says whether the parameter was stepped at all:
            torch leaves a parameter without a gradient alone, momentum and decay included.
    """
    steps = rule.step({name: ledger[:, :, 1 + i] for i, name in enumerate(rule.columns)}, {})
    idle = ledger[:, :, 0] == 0
    unmoved = Step()
    table = {
        name: np.where(idle, getattr(unmoved, name), np.broadcast_to(getattr(steps, name), idle.shape))
        for name in (field.name for field in fields(Step))
    }
    latest_first = (Step(**{name: column[t] for name, column in table.items()}) for t in reversed(range(len(ledger))))
    return adjoint(latest_first)


def known() -> Sequence[str]:
    """Return the names of the optimisers whose runs have an exact dual form."""
    return [known_as(optimizer) for optimizer in _NAMES]


def known_as(optimizer: type[Optimizer]) -> str:
    """Return the name of a registered class as one would import it."""
    name = _NAMES[optimizer]
    return name if "." in name else f"torch.optim.{name}"
