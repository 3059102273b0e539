"""Every optimiser that has a dual form, with random options: one entry each, and all tests of exactness use it."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch.optim import Optimizer

from dualform.algebra import RULES, Rule
from tests.lion import Lion

_COMMON = {"weight_decay": st.sampled_from([0.0, 0.1]), "maximize": st.booleans()}
_DECOUPLED = {**_COMMON, "decoupled_weight_decay": st.booleans()}
_BETAS = {
    "betas": st.tuples(st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.3, 0.9, 0.99])),
    "eps": st.sampled_from([1e-8, 1e-3]),
}

OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "SGD": {
        **_COMMON,
        "momentum": st.just(0.9),
        "nesterov": st.booleans(),
    },
    "Adam": {**_DECOUPLED, **_BETAS, "amsgrad": st.booleans()},
    "AdamW": {**_COMMON, **_BETAS, "amsgrad": st.booleans()},
    "NAdam": {**_DECOUPLED, **_BETAS, "momentum_decay": st.sampled_from([0.0, 4e-3, 0.5])},
    "RAdam": {**_DECOUPLED, **_BETAS},
    "RMSprop": {
        **_COMMON,
        "alpha": st.sampled_from([0.5, 0.99]),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "momentum": st.sampled_from([0.0, 0.9]),
        "centered": st.booleans(),
    },
    "Adadelta": {**_COMMON, "rho": st.sampled_from([0.5, 0.9, 1.0]), "eps": st.sampled_from([1e-6, 1e-3])},
    "Adafactor": {
        **_COMMON,
        "beta2_decay": st.sampled_from([0.0, -0.8]),
        "eps": st.sampled_from([(None, 1e-3), (1e-3, 0.5)]),
        "d": st.sampled_from([1.0, 3.0]),
    },
    "Adamax": {**_COMMON, **_BETAS},
    "ASGD": {
        **_COMMON,
        "lambd": st.sampled_from([0.0, 1e-4, 0.5]),
        "alpha": st.sampled_from([0.0, 0.75]),
        "t0": st.sampled_from([1e6, 1.0]),
    },
    "Lion": {"betas": _BETAS["betas"], "weight_decay": st.sampled_from([0.0, 0.1])},
    "Muon": {
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "momentum": st.sampled_from([0.0, 0.5, 0.95]),
        "nesterov": st.booleans(),
        "ns_steps": st.sampled_from([0, 1, 5]),
        "adjust_lr_fn": st.sampled_from([None, "original", "match_rms_adamw"]),
    },
    "Rprop": {
        "maximize": st.booleans(),
        "etas": st.sampled_from([(0.5, 1.2), (0.3, 2.0)]),
        "step_sizes": st.sampled_from([(1e-6, 50), (0.01, 0.15)]),
    },
    "Adagrad": {
        **_COMMON,
        "lr_decay": st.sampled_from([0.0, 0.1]),
        "initial_accumulator_value": st.sampled_from([0.0, 0.5]),
    },
}
MATRICES_ONLY = ["Muon"]  # which steps no biases
OWN = {"Lion": Lion}  # all others are torch's


def rule_of(name: str) -> Rule:
    return RULES[f"tests.lion.{name}" if name in OWN else name]


ELEMENTWISE = [name for name in OPTIONS if rule_of(name).elementwise]
TORCHS = [name for name in ELEMENTWISE if name not in OWN]
DECAYING = [name for name in TORCHS if "weight_decay" in OPTIONS[name]]


def options(names: list[str] | None = None) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """An optimiser's name and keyword arguments for it; of any that steps whole models, unless some are named."""
    return st.sampled_from(names or [name for name in OPTIONS if name not in MATRICES_ONLY]).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(OPTIONS[name]))
    )


def make(name: str, parameters: Any, lr: float, given: dict[str, Any]) -> Optimizer:
    optimizer: Optimizer = (OWN.get(name) or getattr(torch.optim, name))(parameters, lr=lr, **given)
    return optimizer
