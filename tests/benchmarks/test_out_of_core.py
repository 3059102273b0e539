"""`benchmarks.out_of_core`: the run it writes, the limits it sets, and what it measures of a small run."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks import out_of_core
from benchmarks.memory_limit import NO_GROUP, _make, group, status
from benchmarks.out_of_core import LAYER, Settings, measured, printed, report, write
from dualform.store import Run

pytestmark = pytest.mark.slow

SMALL = Settings(run_bytes=40 << 20, limit_bytes=1 << 30, repetitions=1, batch=5)
GREEDY = "x = bytearray(400 << 20); print(len(x))"
DATA = "from benchmarks.memory_limit import limit_data; assert limit_data(100 << 20); "

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")


def test_the_run_is_as_large_as_asked_for_and_in_order(tmp_path: Path) -> None:
    write(tmp_path / "run", 40 << 20)
    run = Run(tmp_path / "run")
    assert run.unread is None
    assert run.ended == "complete"
    assert run.nbytes == pytest.approx(40 << 20, rel=0.2)  # with two snapshots of 2.5 MB
    for _, shard in run.chapters:
        keys = shard["slots/layer/keys"]
        assert keys.dtype == np.float16
        assert keys.shape == (shard.slots("layer"), LAYER.d_in)
        assert np.isfinite(keys).all()


@contextmanager
def nothing_allowed(nbytes: int) -> Iterator[tuple[list[str], str]]:
    yield [], NO_GROUP


def test_without_control_groups_allocations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_core, "group", nothing_allowed)
    results = {"out_of_core": measured(SMALL), "settings": asdict(SMALL)}
    scan = results["out_of_core"]
    assert scan["limit"] == NO_GROUP
    assert len(scan["disk_gbs"]) == len(scan["scan_gbs"]) == SMALL.repetitions
    assert scan["speed_ratio"] == scan["scan_gbs"][-1] / scan["disk_gbs"][-1]
    assert scan["bytes"] == pytest.approx(SMALL.run_bytes, rel=0.2)
    assert scan["anonymous_mb"] < 400
    assert scan["second"]["read_ratio"] <= scan["first"]["read_ratio"] + 0.1  # nothing took its pages away
    assert scan["batch"]["seconds"] > 0
    assert NO_GROUP in report(results)


def test_a_process_that_fails_or_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed([sys.executable, "-c", "print('{\"a\": 1}')"]) == {"a": 1}
    assert "no more" in printed([sys.executable, "-c", "raise SystemExit('no more')"])["failed"]
    monkeypatch.setattr(out_of_core, "_TIMEOUT", 0.5)
    assert printed([sys.executable, "-c", "import time; time.sleep(9)"]) == {"failed": "took more than 0.5 s"}


def test_a_scan_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_core, "group", nothing_allowed)
    monkeypatch.setattr(out_of_core, "write", lambda path, nbytes: None)
    monkeypatch.setattr(out_of_core, "printed", lambda command: {"failed": "was killed"})
    with pytest.raises(RuntimeError, match="the scan was killed, limited by no control group"):
        measured(SMALL)


@linux
def test_allocations_beyond_the_limit_fail() -> None:
    done = subprocess.run([sys.executable, "-c", DATA + GREEDY], capture_output=True, text=True)
    assert "MemoryError" in done.stderr
    assert done.returncode == 1


@linux
def test_a_group_takes_a_process_that_is_too_large() -> None:
    with group(100 << 20) as (prefix, said):
        if not prefix:
            assert said == NO_GROUP
            pytest.skip("control groups are not ours to make")
        done = subprocess.run([*prefix, sys.executable, "-c", GREEDY], capture_output=True, text=True)
        made = Path(prefix[-1])
        assert made.exists()
    assert done.returncode != 0
    assert not done.stdout
    assert not made.exists()


def test_a_directory_that_is_no_control_group_is_left_as_it_was(tmp_path: Path) -> None:
    assert _make(tmp_path / "group", "memory.max", 1 << 20) is None
    assert _make(tmp_path / "nowhere" / "group", "memory.max", 1 << 20) is None
    assert not list(tmp_path.iterdir())


@linux
def test_memory_is_counted_in_bytes() -> None:
    counted = (
        "import numpy as np; from benchmarks.memory_limit import status; before = status('RssAnon'); "
        "kept = np.ones(64 << 20, dtype=np.uint8); print(status('RssAnon') - before)"
    )
    # a process of its own: in this one, what other tests left behind may be freed in between
    done = subprocess.run([sys.executable, "-c", counted], check=True, capture_output=True, text=True)
    assert 60 << 20 < int(done.stdout) < 80 << 20
    assert status("Nothing") == 0
