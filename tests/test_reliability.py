"""docs/reliability.md: its loop survives being killed, and the tests it names are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dualform
from benchmarks.contents import contents

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")

(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)

# The example, killed as it is about to save its second checkpoint, when the memory is already on the disk.
KILLED = f"""
import os, signal, torch
save_really, checkpoints = torch.save, []
def save_or_die(*arguments):
    if len(checkpoints) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.append(save_really(*arguments))
torch.save = save_or_die
{EXAMPLE}
"""


def run_example(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory.mkdir(exist_ok=True)
    monkeypatch.chdir(directory)
    exec(compile(EXAMPLE, "reliability.md", "exec"), {})
    return directory / "runs" / "mine"


@pytest.mark.slow
def test_the_loop_of_the_page_survives_being_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(run_example(tmp_path / "whole", monkeypatch))
    killed = tmp_path / "killed"
    killed.mkdir()
    assert subprocess.run([sys.executable, "-c", KILLED], cwd=killed, check=False).returncode < 0
    memory = dualform.load(killed / "runs" / "mine")
    assert memory.steps == 200
    assert "not closed" in repr(memory)
    assert "after step 200, 100, 0. To go on, restore your checkpoint of one and dualform.record(" in repr(memory)
    assert memory.verify().ok
    assert contents(run_example(killed, monkeypatch)) == whole
    assert contents(run_example(killed, monkeypatch)) == whole  # once more, when there is nothing left to do


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))))
def test_the_tests_it_names_are_there(name: str) -> None:
    assert (ROOT / name).is_file()
