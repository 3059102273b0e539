"""Backward passes that are not in the gradient, though they look like one that is: what was accumulated counts."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recorder.loops import assert_exact, batch, network, record, sgd


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets)


def look(model: nn.Module, loss: Tensor) -> None:
    torch.autograd.grad(loss, [*model.parameters()])


def look_first(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """As a log of gradients does."""
    look(model, loss_of(model, inputs, targets))
    loss_of(model, inputs, targets).backward()


def look_last(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    loss_of(model, inputs, targets).backward()
    look(model, loss_of(model, inputs, targets))


def look_on_the_same_graph(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    loss = loss_of(model, inputs, targets)
    torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    loss.backward()


def look_at_inputs(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    inputs.requires_grad_(True)
    torch.autograd.grad(loss_of(model, inputs, targets), inputs)
    loss_of(model, inputs, targets).backward()


LOOKS = [look_first, look_last, look_on_the_same_graph, look_at_inputs]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("backward", LOOKS)
def test_a_pass_that_was_only_looked_at_has_no_slots(tmp_path: Path, backward: object, clip: bool) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(4):
            optimizer.zero_grad()
            backward(model, *batch())  # type: ignore[operator]
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 4)
    assert memory.summary()["layers"]["0"]["slots"] == 4 * 6


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_a_batch_that_is_accumulated_twice_counts_twice(tmp_path: Path, retain: bool, clip: bool) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(4):
            optimizer.zero_grad()
            inputs, targets = batch()
            loss = loss_of(model, inputs, targets)
            loss.backward(retain_graph=retain)
            (loss if retain else loss_of(model, inputs, targets)).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 4)
    assert memory.summary()["layers"]["0"]["slots"] == 2 * 4 * 6


def test_gradients_that_are_set_by_hand_are_those_of_their_pass(tmp_path: Path) -> None:
    """No pass was accumulated, so that all of them may count."""
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(4):
            parameters = [*model.parameters()]
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss_of(model, *batch()), parameters), strict=True
            ):
                parameter.grad = gradient
            optimizer.step()
    assert_exact(tmp_path / "run", model, 4)


def test_a_gradient_that_is_partly_set_by_hand(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, *batch()).backward()
            parameters = [*model.parameters()]
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss_of(model, *batch()), parameters), strict=True
            ):
                assert parameter.grad is not None
                parameter.grad += gradient
            optimizer.step()
    assert_exact(tmp_path / "run", model, 4)
