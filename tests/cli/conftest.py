"""Calling the command line, and a small run to call it on."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dualform
from dualform.cli import app

MODELS = """
from torch import nn

size = 3

def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

def other():
    return nn.Linear(3, 2)

def number():
    return size

def needy(width):
    return nn.Linear(width, 2)
"""


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"FORCE_COLOR": None})


def fails(*arguments: object) -> str:
    """The reason, after checking that it is all there is."""
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("dualform: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def record(path: Path, *, values: bool = True, about: dict[str, Any] | None = None) -> Path:
    """Four steps of a small network, with tags."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path, dtype="float32", values=values, about=about) as recorder:
        for step in range(4):
            recorder.tag(id=torch.arange(6), label=torch.arange(6) % 2, task="odd" if step % 2 else "even")
            loss = model(torch.randn(6, 3, generator=generator)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, in a current directory that has models.py and inputs.npy beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "models", raising=False)
    (tmp_path / "models.py").write_text(MODELS)
    np.save(tmp_path / "inputs.npy", np.arange(12.0).reshape(4, 3))
    return record(tmp_path / "run")
