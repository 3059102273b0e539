"""`benchmarks.viewer_load`: what it asks, and a load of a second."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dualform
from benchmarks.viewer_load import ClientLog, QuestionMaker, report, summary
from dualform.experiments.demo import ABOUT, network
from dualform.inputs import save_inputs
from tests.cli.conftest import record

pytestmark = pytest.mark.slow

RUN: dict[str, Any] = {
    "kind": "rows", "cannot": {}, "inputs": {"count": 4}, "per": ["id"], "layers": [{"name": "0"}, {"name": "2"}],
    "classes": [{"task": "odd", "label": 1}, {"task": None, "label": 0}], "example": None,
}  # fmt: skip
TEXT = {**RUN, "kind": "text", "inputs": None, "classes": [], "example": "hello"}


@pytest.mark.parametrize(
    ("run", "kinds"),
    [
        (RUN, {"predict", "spotlight", "mute", "inputs"}),
        ({**RUN, "cannot": {"mute": "why"}}, {"predict", "spotlight", "inputs"}),
        ({**RUN, "classes": []}, {"predict", "spotlight", "inputs"}),
        (TEXT, {"predict", "passages"}),
        ({**TEXT, "cannot": {"spotlight": "why"}}, {"predict"}),
    ],
)
def test_only_what_can_be_answered_is_asked(run: dict[str, Any], kinds: set[str]) -> None:
    maker = QuestionMaker(run, 0)
    assert set(maker.kinds) == kinds == {maker.question()[0] for _ in range(200)}


def test_a_class_is_muted_by_its_tags() -> None:
    maker = QuestionMaker(RUN, 0)
    muted = [maker.question("mute")[1]["mute"] for _ in range(50)]
    assert [{"task": ["odd"], "label": [1]}] in muted
    assert [{"label": [0]}] in muted


def test_errors_are_told() -> None:
    log = ClientLog()
    log.note(("predict", {}), 200, {}, 0.010)
    log.note(("mute", {}), 503, {"error": "not yet"}, 0.030)
    told = report({"clients": 2, "preparing": 1.0, **summary(log, 2.0), "memory_mb": {"at first": (10.0, 5.0)}})
    assert "2 answers, 1 a second" in told
    assert "1 of status 503" in told
    assert told.endswith("503 mute {}: not yet")


def digits(path: Path) -> Path:
    """A run that names its own model and inputs, of two steps."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path, about=ABOUT) as recorder:
        for _ in range(2):
            recorder.tag(id=torch.arange(20), label=torch.arange(20) % 10)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(20, 64)), torch.arange(20) % 10).backward()
            optimizer.step()
    save_inputs(path, inputs=torch.randn(5, 64), labels=torch.arange(5))
    return path


def load(run: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.viewer_load", str(run), "--clients", "3", "--seconds", "1", "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_short_load(tmp_path: Path) -> None:
    done = load(digits(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert (results["errors"], results["clients"]) == ({}, 3)
    assert set(results["by_question"]) <= {"predict", "spotlight", "mute", "inputs"}


def test_a_run_without_a_model(tmp_path: Path) -> None:
    done = load(record(tmp_path / "run"))
    assert (done.returncode, "finds no model" in done.stderr) == (1, True), done.stderr
