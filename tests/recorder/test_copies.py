"""Copies of a model that is being recorded: averages of weights, the best so far, checkpoints, spawned processes."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import dualform
from tests.recorder.loops import assert_exact, batch, network, record, sgd, step

# In a process that has never heard of dualform.
LOADED = """
import sys, pickle, torch
sys.modules["dualform"] = None
with open(sys.argv[1], "rb") as file:
    model = torch.load(file, weights_only=False) if sys.argv[2] == "torch" else pickle.load(file)
model(torch.zeros(2, 5, dtype=torch.float64)).sum().backward()
print(float(model[0].weight.detach().sum()))
"""


def through_pickle(model: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


def through_torch(model: nn.Module) -> nn.Module:
    torch.save(model, buffer := BytesIO())
    buffer.seek(0)
    copied: nn.Module = torch.load(buffer, weights_only=False)
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch])
def test_a_copy_is_not_recorded(tmp_path: Path, copied: Callable[[nn.Module], nn.Module]) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(4):
            twin = copied(model)
            inputs, _ = batch()
            twin(inputs).sum().backward()  # as in distillation from an average of weights
            assert_close(twin(inputs), model(inputs), rtol=0, atol=0)
            step(model, optimizer)
            twin(inputs).square().sum().backward()
    assert assert_exact(tmp_path / "run", model, 4).slots("0") == 24


def test_an_average_of_weights_is_trained_beside_the_model(tmp_path: Path) -> None:
    """A copy with an optimiser of its own is a training of its own, and may be recorded as such."""
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "first"):
        step(model, optimizer)
        twin = copy.deepcopy(model)
        second = sgd(twin)
        with record(twin, second, tmp_path / "second"):
            for _ in range(3):
                step(twin, second)
                step(model, optimizer)
    assert assert_exact(tmp_path / "first", model, 4).slots("0") == 24
    assert assert_exact(tmp_path / "second", twin, 3).slots("0") == 18


def test_a_copy_of_an_lstm_is_not_recorded(tmp_path: Path) -> None:
    model = nn.Sequential(dualform.nn.LSTM(5, 4)).double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            inputs = torch.randn(6, 2, 5, dtype=torch.float64)
            through_torch(model)(inputs)[0].sum().backward()
            copy.deepcopy(model)(inputs)[0].sum().backward()
            optimizer.zero_grad()
            model(inputs)[0].square().sum().backward()
            optimizer.step()
    assert assert_exact(tmp_path / "run", model, 3).slots("0.l0") == 36


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_needs_no_dualform(tmp_path: Path, how: str) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"), (tmp_path / "model.pt").open("wb") as file:
        step(model, optimizer)
        torch.save(model, file) if how == "torch" else pickle.dump(model, file)
    command = [sys.executable, "-c", LOADED, str(tmp_path / "model.pt"), how]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(loaded.stdout) == float(model[0].weight.detach().sum())  # type: ignore[operator]
