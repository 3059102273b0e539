"""Every optimiser that has a dual form, with random options: one entry each, and all tests of exactness use it."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch.optim import Optimizer

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
    "Adagrad": {
        **_COMMON,
        "lr_decay": st.sampled_from([0.0, 0.1]),
        "initial_accumulator_value": st.sampled_from([0.0, 0.5]),
    },
}
ELEMENTWISE = [name for name in OPTIONS if name != "SGD"]


def options(names: list[str] | None = None) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """An optimiser's name and keyword arguments for it."""
    return st.sampled_from(names or list(OPTIONS)).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(OPTIONS[name]))
    )


def make(name: str, parameters: Any, lr: float, given: dict[str, Any]) -> Optimizer:
    optimizer: Optimizer = getattr(torch.optim, name)(parameters, lr=lr, **given)
    return optimizer
