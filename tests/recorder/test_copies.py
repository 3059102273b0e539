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
    """Though what goes through it could be taken for what goes through the model."""
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(4):
            inputs, _ = batch()
            optimizer.zero_grad()
            for who, trained in (("model", model), ("copy", copied(model))):
                recorder.tag(who=who)
                trained(inputs).square().sum().backward()
            optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 4)
    assert memory.visits("0", by="who")["who"].tolist() == ["model"]


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
