"""What `dualform.record` is called with by mistake: an error that says what to pass instead."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RecordingError
from tests.recorder.loops import network, sgd

MODEL = network()
OPTIMIZER = sgd(MODEL)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (OPTIMIZER, "the model comes first, and then its optimiser: .*; got SGD as the model"),
        (MODEL.parameters(), "needs a model, an nn.Module, got generator. Pass the model itself, not its parameters"),
        ([*MODEL.parameters()], "got list. Pass the model itself, not its parameters"),
        ([MODEL, MODEL], "got list. .* several models go into one nn.ModuleList"),
        (nn.Linear, r"got the class Linear: make one, Linear\(...\)"),
        (None, "needs a model, an nn.Module, got None"),
    ],
)
def test_what_is_no_model(tmp_path: Path, model: Any, says: str) -> None:
    with pytest.raises(RecordingError, match=says):
        swapped: Any = MODEL if model is OPTIMIZER else OPTIMIZER
        dualform.record(model, swapped, tmp_path / "run")


@pytest.mark.parametrize("values", [True, False])  # keys alone need no rule of the optimiser
@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (torch.optim.SGD, r"got the class SGD: make one, SGD\(model.parameters\(\), ...\)"),
        (torch.optim.lr_scheduler.LambdaLR(sgd(MODEL), float), "got LambdaLR: pass scheduler.optimizer"),
        (MODEL, "needs a torch.optim.Optimizer, or a list of them, got Sequential"),
        ([OPTIMIZER, None], "got None"),
        ([*MODEL.parameters()], "got Parameter: pass what has the `step` that trains the model"),
        (None, "got None"),
        ([], "needs the optimiser that trains the model, got none"),
    ],
)
def test_what_is_no_optimiser(tmp_path: Path, optimizer: Any, says: str, values: bool) -> None:
    with pytest.raises(RecordingError, match=says):
        dualform.record(MODEL, optimizer, tmp_path / "run", values=values)


@pytest.mark.parametrize("path", [None, 3, b"run", MODEL])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(RecordingError, match="path must be the name of a directory, or a backend .*, got "):
        dualform.record(MODEL, OPTIMIZER, path)


@pytest.mark.parametrize("layers", [3, None, MODEL[0], [MODEL[0]], ["0", 1]])
@pytest.mark.parametrize("option", ["layers", "exclude"])
def test_what_is_no_name(tmp_path: Path, layers: Any, option: str) -> None:
    with pytest.raises(RecordingError, match="layers are chosen by name, .* choose from '0', '1'"):
        dualform.record(MODEL, OPTIMIZER, tmp_path / "run", **{option: layers})
