"""Layers whose gradients are not explained: all of them are named, or they are dropped and the others go on."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.errors import RecordingError, UnexplainedGradient, UnknownName
from tests.recorder.loops import batch, record, sgd, step


class Regularised(nn.Module):
    """A network whose middle layer is used once more, past its hook, as soon as `twice` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.twice = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.middle(self.first(inputs).tanh()).tanh()
        if self.twice:
            hidden = hidden + F.linear(hidden, self.middle.weight)
        output: Tensor = self.last(hidden)
        return output


def trained(path: Path, model: Regularised, steps: int = 40, unusual: int = 20, **options: Any) -> dualform.Recorder:
    """From step `unusual` on, the middle layer cannot be explained."""
    optimizer = sgd(model)
    with record(model, optimizer, path, **options) as recorder:
        for number in range(steps):
            model.twice = number >= unusual
            recorder.tag(label=torch.arange(6))
            step(model, optimizer)
            if number == 30:
                recorder.sync()
    return recorder


def test_all_layers_that_fail_are_named(tmp_path: Path) -> None:
    model = Regularised().double()
    optimizer = sgd(model)
    with pytest.raises(UnexplainedGradient) as raised, record(model, optimizer, tmp_path / "run"):
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
        for parameter in (model.first.bias, model.last.weight):
            assert parameter.grad is not None
            parameter.grad.add_(torch.randn_like(parameter.grad))
        optimizer.step()
    message = str(raised.value)
    assert "step 0, layer 'first': the gradient of 'first.bias', layer 'last': the gradient of 'last.weight'" in message
    assert "middle" not in message
    assert message.count("clipped by value") == 1


@pytest.mark.parametrize("unusual", [0, 3, 20])
def test_a_layer_is_dropped_and_the_others_go_on(tmp_path: Path, unusual: int) -> None:
    """At once, in the first steps that are audited one by one, and among those that wait for one another."""
    model = Regularised().double()
    with pytest.warns(UserWarning, match="goes on without layer 'middle'") as warned:
        recorder = trained(tmp_path / "run", model, unusual=unusual, on_unexplained="drop")
    assert len(warned) == 1
    assert (recorder.layers, recorder.dropped) == (["first", "last"], {"middle": unusual})
    memory = dualform.load(tmp_path / "run")
    assert (memory.layers, memory.steps, memory.verify().ok) == (["first", "last"], 40, True)
    assert memory.slots("first") == memory.slots("last") == 240
    assert memory.unrecorded == ["middle.bias", "middle.weight"]
    assert [*memory.parameters(model)] == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert memory.summary()["dropped"] == {"middle": unusual}
    assert f"middle (from step {unusual} on)" in repr(memory)
    for name, weight in memory.weights("last").items():
        assert_close(weight, model.get_parameter(name).detach(), rtol=1e-9, atol=1e-9)
    inputs, _ = batch()
    assert_close(memory.attend(model, inputs)["last"].output(), model(inputs).detach())
    with pytest.raises(UnknownName, match="no layer 'middle'"):
        memory.slots("middle")


def test_nothing_stays_on_a_layer_that_was_dropped(tmp_path: Path) -> None:
    """Nor is it minded any more, what becomes of its weight, or what was on its way back when it was dropped."""
    model = Regularised().double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", on_unexplained="drop"):
        step(model, optimizer)
        model.twice = True
        under_way = model.middle(torch.randn(2, 4, dtype=torch.float64)).sum()
        with pytest.warns(UserWarning, match="goes on without layer 'middle'"):
            step(model, optimizer)
        assert not model.middle._forward_hooks
        for _ in range(4):
            model.middle.weight.data.mul_(0.9)
            step(model, optimizer)
        torch.autograd.grad(under_way, model.middle.bias)
        step(model, optimizer)
    memory = dualform.load(tmp_path / "run")
    assert (memory.steps, memory.verify().ok) == (7, True)


def test_several_layers_are_dropped_one_after_the_other(tmp_path: Path) -> None:
    model = Regularised().double()
    optimizer = sgd(model)

    def change(*layers: nn.Linear) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
        for layer in layers:
            assert layer.weight.grad is not None
            layer.weight.grad.add_(torch.randn_like(layer.weight.grad))
        optimizer.step()

    with (
        pytest.raises(
            UnexplainedGradient, match="step 3, layer 'first': the gradient of 'first.weight' is not the sum"
        ),
        record(model, optimizer, tmp_path / "run", on_unexplained="drop") as recorder,
    ):
        step(model, optimizer)
        with pytest.warns(UserWarning, match="goes on without layer 'last'"):
            change(model.last)
        recorder.sync()
        with pytest.warns(UserWarning, match="goes on without layer 'middle'"):
            change(model.middle)
        change(model.first, model.middle)  # and now no layer is left
    memory = dualform.load(tmp_path / "run")
    assert (memory.layers, memory.steps) == (["first"], 3)
    assert memory.summary()["dropped"] == {"last": 1, "middle": 2}


def test_a_run_goes_on_without_what_was_dropped(tmp_path: Path) -> None:
    model = Regularised().double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", on_unexplained="drop") as recorder:
        step(model, optimizer)
        recorder.sync()
        model.twice = True
        with pytest.warns(UserWarning, match="goes on without layer 'middle'"):
            step(model, optimizer)
    with record(model, optimizer, tmp_path / "run", resume=2) as recorder:
        assert recorder.dropped == {"middle": 1}
        step(model, optimizer)
    memory = dualform.load(tmp_path / "run")
    assert (memory.layers, memory.steps, memory.verify().ok) == (["first", "last"], 3, True)


def test_a_run_that_is_cut_back_has_its_layers_again(tmp_path: Path) -> None:
    model = Regularised().double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", on_unexplained="drop") as recorder:
        step(model, optimizer)
        recorder.sync()
        checkpoint = deepcopy((model.state_dict(), optimizer.state_dict()))
        model.twice = True
        with pytest.warns(UserWarning, match="goes on without layer 'middle'"):
            step(model, optimizer)
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    model.twice = False
    with record(model, optimizer, tmp_path / "run", resume=1) as recorder:
        step(model, optimizer)
        assert recorder.dropped == {}
    memory = dualform.load(tmp_path / "run")
    assert (memory.layers, memory.verify().ok) == (["first", "middle", "last"], True)


@pytest.mark.parametrize("options", [{"values": False}, {"merge": "label"}])
def test_keys_of_the_others_are_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    model = Regularised().double()
    with pytest.warns(UserWarning, match="goes on without layer 'middle'"):
        trained(tmp_path / "run", model, on_unexplained="drop", **options)
    memory = dualform.load(tmp_path / "run")
    assert memory.layers == ["first", "last"]
    assert memory.visits("last", by="label")["visits"].tolist() == [40] * 6


@pytest.mark.parametrize("mode", ["ignore", None, True])
def test_there_are_two_things_to_do(tmp_path: Path, mode: Any) -> None:
    model = Regularised()
    with pytest.raises(RecordingError, match=f'on_unexplained must be "raise" or "drop", not {mode!r}'):
        record(model, sgd(model), tmp_path / "run", on_unexplained=mode)
