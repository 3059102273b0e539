"""Reading while another process records: always a consistent prefix, for any number of readers."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import dualform
from dualform.store import Run

RECORDER = """
import sys
sys.path.insert(0, {project!r})
import torch
from tests.recorder.loops import network, record, sgd, step
torch.set_num_threads(1)
torch.manual_seed(0)
model = network()
optimizer = sgd(model, lr=0.01)
checkpoint = None
with record(model, optimizer, {run!r}) as recorder:
    for number in range(60):
        step(model, optimizer)
        recorder.sync()
        if number == 20:
            checkpoint = {{name: t.clone() for name, t in model.state_dict().items()}}, optimizer.state_dict()
            torch.save(checkpoint, {run!r} + ".pt")
model_state, optimizer_state = torch.load({run!r} + ".pt")
model.load_state_dict(model_state)
optimizer.load_state_dict(optimizer_state)
with record(model, optimizer, {run!r}, resume=21) as recorder:  # shards go and come while others read
    for number in range(21, 60):
        step(model, optimizer)
        recorder.sync()
"""


@contextmanager
def recording(run: Path) -> "Iterator[subprocess.Popen[bytes]]":
    script = RECORDER.format(project=str(Path(__file__).parents[2]), run=str(run))
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# A shard may go between two looks: then the run ends before it, which is said.
@pytest.mark.filterwarnings("ignore:.*what comes after step:UserWarning")
def test_readers_see_consistent_prefixes(tmp_path: Path) -> None:
    def look(_: int) -> list[int]:
        seen = []
        while process.poll() is None:
            if not (tmp_path / "run" / "shard-000000.safetensors").exists():
                continue
            memory = dualform.load(tmp_path / "run")
            certificate = memory.verify()
            assert certificate.relative_error < 1e-9, str(certificate)
            assert memory.slots("0") == 6 * memory.steps
            seen.append(memory.steps)
        return seen

    with recording(tmp_path / "run") as process, ThreadPoolExecutor(3) as readers:
        found = list(readers.map(look, range(3)))
        assert process.returncode == 0
    assert len(set().union(*found)) > 2  # they did look while it grew
    assert Run(tmp_path / "run").steps == 60
    assert dualform.load(tmp_path / "run").verify().ok
