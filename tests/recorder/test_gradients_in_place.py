"""Optimisers that change gradients while they step, hooks that do before, closures that make them: all exact."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.optimizers import DECAYING
from tests.recorder.loops import assert_exact, batch, network, record

_OWN: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9}, {}],
    "RMSprop": [{"momentum": 0.9, "centered": True}, {}],
    "Adam": [{"amsgrad": True}, {}],
}
_WAYS: list[dict[str, Any]] = [{"foreach": True}, {"foreach": False}, {"fused": True}]
CASES = [
    (name, {**own, **way, "maximize": maximize, "weight_decay": decay})
    for name in ("SGD", "ASGD", *DECAYING)
    for own, way, maximize, decay in product(_OWN.get(name, [{}]), _WAYS, (False, True), (0.0, 0.1))
    if "fused" not in way or name in ("SGD", "Adam", "AdamW", "Adagrad")
]


def make(name: str, model: nn.Module, options: dict[str, Any]) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    return optimizer


def backward(model: nn.Module) -> Tensor:
    inputs, targets = batch()
    model.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda case: str(case).replace(" ", ""))
@pytest.mark.parametrize("closure", [False, True])
def test_gradients_are_taken_before_the_optimiser_changes_them(
    tmp_path: Path, name: str, options: dict[str, Any], closure: bool
) -> None:
    model = network(nn.LayerNorm(4), nn.ReLU())
    optimizer = make(name, model, options)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            if closure:
                optimizer.step(lambda: backward(model).item())
            else:
                backward(model)
                optimizer.step()
    assert_exact(tmp_path / "run", model, 3)


def test_a_single_step_with_nesterov_is_exact(tmp_path: Path) -> None:
    model = network()
    optimizer = make("SGD", model, {"momentum": 0.9, "nesterov": True, "foreach": True})
    with record(model, optimizer, tmp_path / "run"):
        backward(model)
        optimizer.step()
    assert_exact(tmp_path / "run", model, 1)


@pytest.mark.parametrize("fused", [False, True])
def test_a_closure_that_fails_leaves_all_steps_before_it(tmp_path: Path, fused: bool) -> None:
    model = network()
    optimizer = make("SGD", model, {"momentum": 0.9, "fused": fused})

    def fails() -> float:
        backward(model)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            optimizer.step(lambda: backward(model).item())
        optimizer.step(fails)
    assert_exact(tmp_path / "run", model, 3)


def halve(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        parameter.grad.mul_(0.5)


@pytest.mark.parametrize("when", ["before", "while", "everywhere"])
def test_a_hook_that_changes_gradients_is_seen_whenever_it_was_added(tmp_path: Path, when: str) -> None:
    model = network()
    optimizer = make("SGD", model, {"momentum": 0.9, "nesterov": True, "foreach": when != "while"})
    add: Callable[..., Any] = (
        register_optimizer_step_pre_hook if when == "everywhere" else optimizer.register_step_pre_hook
    )
    handle = add(halve) if when == "before" else None
    with record(model, optimizer, tmp_path / "run"):
        for number in range(4):
            if number == 1:
                handle = handle or add(halve)
            backward(model)
            optimizer.step()
    assert handle is not None
    handle.remove()
    assert_exact(tmp_path / "run", model, 4)
