"""A terminal that knows ASCII only: bars are drawn in ASCII, and names of layers and tags are shown escaped."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dualform
from dualform.cli import app


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose layer, tags, text and directory have names that ASCII does not know."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    model = nn.Sequential()
    model.add_module("größe", nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "läufe"
    with dualform.record(model, optimizer, path, about={"notiz": "größer"}) as recorder:
        for step in range(3):
            recorder.tag(label=["süß", "salzig"], größe=step)
            optimizer.zero_grad()
            model(torch.rand(2, 3)).square().sum().backward()
            optimizer.step()
    (tmp_path / "models_of_umlauts.py").write_text(
        "from torch import nn\n\ndef netz():\n    model = nn.Sequential()\n"
        "    model.add_module('größe', nn.Linear(3, 2))\n    return model\n",
        encoding="utf-8",
    )
    np.save(tmp_path / "inputs.npy", np.ones((2, 3), dtype=np.float32))
    return path


@pytest.mark.parametrize("command", ["info", "verify", "attend", "an unknown layer", "no run"])
def test_what_ascii_does_not_have_is_escaped(run: Path, command: str) -> None:
    model = ["--model", "models_of_umlauts:netz", "--input", "inputs.npy"]
    arguments = {
        "info": ["info", str(run)],
        "verify": ["verify", str(run)],
        "attend": ["attend", str(run), *model, "--by", "label"],
        "an unknown layer": ["attend", str(run), *model, "--layer", "höhe"],
        "no run": ["info", "nirgendwö"],
    }[command]
    result = CliRunner(charset="ascii").invoke(app, arguments)
    assert result.exit_code == (1 if command in ("an unknown layer", "no run") else 0), result.output
    assert not isinstance(result.exception, UnicodeError)
    assert result.output.isascii()
    escaped = {"no run": r"nirgendw\xf6", "an unknown layer": r"h\xf6he"}.get(command, r"gr\xf6\xdfe")
    assert escaped in result.output
    assert r"\u2588" not in result.output  # a bar


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}])
def test_output_goes_to_a_file_on_any_system(run: Path, environment: dict[str, str]) -> None:
    settings = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **environment}
    command = [sys.executable, "-m", "dualform", "info", str(run)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"gr" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of files that are no text")
def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    command: list[str | bytes] = [sys.executable, "-m", "dualform", "info", os.fsencode(tmp_path) + b"/\xff"]
    done = subprocess.run(command, env=os.environ | {"PYTHONUTF8": "1"}, capture_output=True)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
