"""Reading while another process records: always a consistent prefix, for any number of readers."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import dualform

pytestmark = pytest.mark.slow

STEPS, RESUMED, LOOKS = 30, 10, 8

# Records, and cuts the run back and goes on, again and again: shards come and go for as long as others read.
RECORDER = """
import copy, sys
from pathlib import Path
sys.path.insert(0, {project!r})
import torch
from tests.recorder.loops import network, record, sgd, step
torch.set_num_threads(1)
model = network()
optimizer = sgd(model, lr=0.01)
resume = None
while resume is None or not Path({stop!r}).exists():
    with record(model, optimizer, Path({run!r}), resume=resume) as recorder:
        while recorder.steps < {steps}:
            step(model, optimizer)
            if recorder.sync() == {resumed}:
                checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    resume = {resumed}
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
"""


@contextmanager
def recording(run: Path) -> "Iterator[subprocess.Popen[bytes]]":
    script = RECORDER.format(
        project=str(Path(__file__).parents[2]), run=str(run), stop=str(run.with_name("stop")), steps=STEPS,
        resumed=RESUMED,
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        while not (run / "shard-000000.safetensors").exists():
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


def look(run: Path) -> list[int]:
    """How many steps there were, each time."""
    seen: list[int] = []
    while len(seen) < LOOKS or (len({*seen}) < 3 and len(seen) < 100 * LOOKS):  # on a busy machine it grows slowly
        memory = dualform.load(run)
        certificate = memory.verify()
        assert certificate.relative_error < 1e-9, str(certificate)
        assert memory.slots("0") == 6 * memory.steps
        seen.append(memory.steps)
    return seen


# A shard may go between two looks: then the run ends before it, which is said.
@pytest.mark.filterwarnings("ignore:.*what comes after step:UserWarning")
def test_readers_see_consistent_prefixes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with recording(run) as process:
        with ThreadPoolExecutor(3) as readers:
            found = list(readers.map(look, [run] * 3))
        (tmp_path / "stop").touch()
        assert process.wait() == 0
    assert len(set().union(*found)) > 2  # they did look while it grew
    assert dualform.load(run).steps == STEPS
    assert dualform.load(run).verify().ok
