"""A recording that is killed again and again loses nothing: a few kills of `python -m benchmarks.crash`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

KILLS = 10


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_kills_at_any_moment_lose_nothing() -> None:
    """In a process of its own: it forks, and this one may have threads by now."""
    command = [sys.executable, "-m", "benchmarks.crash", "--kills", str(KILLS), "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    counts = result["counts"]
    assert [counts[name] for name in ("kills", "opened", "certified", "resumed")] == [KILLS] * 4
    assert counts["identical"] == counts["finished"] > 0
    assert result["ok"]
    assert result["failure"] is None
    assert result["kept"] is None
