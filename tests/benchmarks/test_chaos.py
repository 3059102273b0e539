"""Whatever happens to a recording, what was promised is there: a few events of `python -m benchmarks.chaos`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, SIGKILL and limits of resources")
def test_promises_hold_in_chaos() -> None:
    """In a process of its own: it forks, and this one may have threads by now."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--each", "2", "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert result["violations"] == []
    assert {*result["tried"].values()} == {2}
    assert result["held"] == result["tried"]
    assert done.returncode == 0, done.stderr
