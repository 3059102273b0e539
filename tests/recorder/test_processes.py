"""Several processes record one run: it answers as that of one process that saw the joint batches."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualform
from dualform.store import Run, summary_lines
from tests.markdown import ROOT, blocks, read
from tests.recorder.processes import TRAININGS, WRONG, inputs, launch, texts

SIZE, SECONDS = 2, 300
ALIKE = ["mlp", "float32", "transformer", "static"]  # slot by slot
ALL = [name for name in TRAININGS if name != "killed"]


def carry_out(directory: Path, size: int, names: list[str]) -> None:
    for rank, process in enumerate(launch(directory, size, names)):
        _, trouble = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"process {rank}: {trouble}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Path]]:
    """The trainings by two processes, those that go wrong, one that goes on; and what one process does by itself."""
    directories = {size: tmp_path_factory.mktemp(f"by_{size}") for size in (SIZE, 1)}
    carry_out(directories[SIZE], SIZE, [*ALL, "killed", *WRONG])
    carry_out(directories[1], 1, ["mlp", "float32", "transformer", "static", "accumulated"])
    yield directories
    for directory in directories.values():
        shutil.rmtree(directory)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ALL)
def test_all_of_it_is_certified(runs: dict[int, Path], name: str) -> None:
    memory = dualform.load(runs[SIZE] / name)
    certificate = memory.verify()
    assert certificate.ok, certificate
    assert memory.steps == TRAININGS[name].steps + 3 * TRAININGS[name].ends_early
    assert certificate.coverage.attributed == 1.0
    assert not list(runs[SIZE].glob(f"{name}.*.txt"))


def questions(name: str) -> torch.Tensor:
    training = TRAININGS[name]
    return texts()[:3, :-1] if training.tokens() else inputs(training.dtype)[0][:3]


def by_slot(table: dualform.Table) -> dict[str, np.ndarray]:
    order = np.lexsort((table["slot"], table["query"]))
    return {name: column[order] for name, column in table.as_arrays().items()}


def assert_alike(pair: Iterable[Any], tolerance: float) -> None:
    """Assert that two arrays are, relative to their largest entry."""
    one, other = map(torch.as_tensor, pair)
    torch.testing.assert_close(other, one, rtol=0, atol=tolerance * float(one.abs().max()))


@pytest.mark.parametrize("name", ALIKE)
def test_answers_are_those_of_one_process(runs: dict[int, Path], name: str) -> None:
    training, model = TRAININGS[name], TRAININGS[name].model().to(TRAININGS[name].dtype)
    tag, tolerance = ("position" if training.tokens() else "label"), 1e-12 if training.dtype == torch.float64 else 1e-5
    joint, together = (dualform.load(runs[size] / name) for size in (1, SIZE))
    answers = [memory.attend(model, questions(name)) for memory in (joint, together)]
    for layer in joint.layers:
        one, other = (by_slot(spotlight[layer].top(10**6)) for spotlight in answers)
        for column in ("query", "slot", "step", "id", tag) if layer != "places" else ():
            np.testing.assert_array_equal(one[column], other[column])
        if layer != "places":  # whose rows all examples of a process share
            assert_alike((one["score"], other["score"]), tolerance)
            assert_alike((spotlight[layer].total(by=tag)["total"] for spotlight in answers), 10 * tolerance)
        assert_alike((spotlight[layer].output() for spotlight in answers), 10 * tolerance)
        if not training.tokens():
            totals = (spotlight[layer].contribution(1).total(by=tag)["total"] for spotlight in answers)
            assert_alike(totals, 10 * tolerance)
        for view in ({}, {"id": [1, 2, 3]}):
            weights = (memory.without(**view).weights(layer) for memory in (joint, together))
            for mine, theirs in zip(*(by_name.values() for by_name in weights), strict=True):
                assert_alike((mine, theirs), 10 * tolerance)


def test_keys_that_do_not_depend_on_what_was_learnt_are_the_same_bits(runs: dict[int, Path]) -> None:
    single_entries = torch.eye(12, dtype=torch.float64)  # of keys are the scores of these
    spotlights = [dualform.load(runs[size] / "mlp").attend({"0": single_entries}) for size in (1, SIZE)]
    one, other = (by_slot(spotlight["0"].top(10**6))["score"] for spotlight in spotlights)
    np.testing.assert_array_equal(one, other)


def test_a_process_without_batches_adds_no_slots(runs: dict[int, Path]) -> None:
    training, memory = TRAININGS["joined"], dualform.load(runs[SIZE] / "joined")
    steps = memory.attend({"0": torch.zeros(1, 12, dtype=torch.float64)})["0"].top(10**6)["step"]
    expected = np.full(training.steps + 3, training.batch)
    expected[training.steps * 2 // 3 : training.steps] = training.batch // 2
    np.testing.assert_array_equal(np.bincount(steps), expected)


def test_accumulated_passes_of_all_processes_are_in_one_step(runs: dict[int, Path]) -> None:
    joint, together = (dualform.load(runs[size] / "accumulated") for size in (1, SIZE))
    for layer in joint.layers:
        for parameter, weight in joint.weights(layer).items():
            torch.testing.assert_close(weight, together.weights(layer)[parameter], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "occupied": "RunExists: .* already holds a run",
        "one_more_step": r"RecordingError: the processes of the training have taken different numbers of steps: 2, 3",
        "not_averaged": "RecordingError: step 0, layer '0': its gradient in process 1 is not the one in process 0",
        "other_layers": "RecordingError: .*it would record other layers than process 0",
    }.items(),
)
def test_what_fails_in_one_process_is_said_in_all(runs: dict[int, Path], name: str, expected: str) -> None:
    for rank in range(SIZE):
        assert re.match(expected, (runs[SIZE] / f"{name}.{rank}.txt").read_text())


def test_the_script_of_the_guide_runs(tmp_path: Path) -> None:
    (script,) = blocks(read("docs/guides/processes.md"), "python")
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert re.search(r"dual = primal to \d\.\de-0\d \(tolerance 5e-05\); 100% of 9,610 trainable", done.stdout)
    assert ", by 2 processes" in summary_lines(Run(tmp_path / "runs" / "processes"))["recorded"]


def kill_one(directory: Path, seed: int) -> None:
    """Begin a training, or go on with it, and kill one of its processes at some moment after its next checkpoint."""
    chance, checkpoint = random.Random(seed), directory / "killed.pt"
    if checkpoint.exists() and dualform.load(directory / "killed").steps > TRAININGS["killed"].steps * 2 // 3:
        shutil.rmtree(directory)
    before = checkpoint.stat().st_mtime if checkpoint.exists() else 0.0
    processes = launch(directory, SIZE, ["killed+" if before else "killed"])
    deadline = time.monotonic() + SECONDS
    while not (checkpoint.exists() and checkpoint.stat().st_mtime > before) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.3))
    victim = chance.randrange(SIZE)
    processes[victim].send_signal(signal.SIGKILL)
    for rank, process in enumerate(processes):
        _, trouble = process.communicate(timeout=SECONDS)
        assert process.returncode, "it ended before it was killed"
        assert (
            rank == victim or "ProcessLost" in trouble or "RuntimeError" in trouble
        )  # the recorder's, or the wrapper's


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_process_that_is_killed_leaves_a_run_that_goes_on(runs: dict[int, Path], tmp_path: Path, kills: int) -> None:
    for kill in range(kills):
        kill_one(tmp_path / "often", seed=kill)
        memory = dualform.load(tmp_path / "often" / "killed")
        assert memory.verify().ok
        assert memory.steps >= TRAININGS["killed"].every
    carry_out(tmp_path / "often", SIZE, ["killed+"])
    ends = [
        dualform.load(path / "killed") for path in (tmp_path / "often", runs[SIZE])
    ]  # the other one was not disturbed
    assert ends[0].steps == ends[1].steps == TRAININGS["killed"].steps
    assert ends[0].verify().ok
    for layer in ends[0].layers:
        for one, other in zip(*(memory.weights(layer).values() for memory in ends), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
