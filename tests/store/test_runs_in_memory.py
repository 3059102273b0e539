"""The same run in memory and in a directory: recorded, read, resumed and refused alike."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.testing import assert_close

import dualform
from benchmarks.contents import contents
from dualform.errors import CannotResume, RunError, RunExists
from dualform.store import (
    Backend,
    Column,
    InMemory,
    KeyLayout,
    Layer,
    LocalFiles,
    Manifest,
    Optimizer,
    Parameter,
    Resumption,
    Rows,
    Run,
    RunWriter,
    StepRecord,
    Storage,
    Use,
)
from tests.store.faults import STEPS, SYNCED, Told, Training, sealed, small_chapters

LAYER = Layer("fc", "Linear", 3, 2, KeyLayout(3), (Use(Parameter("fc.weight", (2, 3), 0), (0, 3)),))
MANIFEST = Manifest("r", "now", "test", Storage("float32"), (Optimizer("SGD", ("lr",)),), (LAYER,))
STATE = {"parameters/fc.weight": Column([np.ones((2, 3), dtype=np.float32)])}


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_chapters():
        yield


def write(where: Path | Backend) -> None:
    """Two chapters of a training that nobody did; every other key is the same."""
    writer = RunWriter.begin(where, MANIFEST, STATE, 1 << 30, overwrite=False)
    for step in range(4):
        keys = np.full((5, 3), step % 2, dtype=np.float32)
        rows = Rows(keys, None, keys[:, :2], None, np.ones(1), {"id": np.arange(5)}, may_repeat=True)
        writer.append(StepRecord({"fc.weight": [1.0, 0.1]}, {"fc": 0.0}, {"fc": [rows]}), {"id": "int"})
        if step % 2:
            writer.seal(STATE)
    writer.close(STATE, "complete")


def objects(backend: Backend) -> dict[str, bytes]:
    blobs = {name: backend.open(name) for name in backend.names()}
    return {name: blob.read(0, blob.size).tobytes() for name, blob in blobs.items()}


def test_both_hold_the_same_bytes(tmp_path: Path) -> None:
    memory = InMemory()
    write(memory)
    write(tmp_path / "run")
    assert objects(memory) == objects(LocalFiles(tmp_path / "run"))
    assert len(memory.names()) == 5


def test_a_training_is_recorded_alike(tmp_path: Path) -> None:
    memory, path = InMemory(), tmp_path / "run"
    assert Training().record(memory) == Training().record(path) == Told(promised=STEPS)
    assert sealed(memory) == sealed(path)
    assert contents(memory) == contents(path)
    in_memory, local = dualform.load(memory), dualform.load(path)
    assert in_memory.verify().ok
    assert local.verify().ok
    for layer in local.layers:
        assert in_memory.where(task="b").slots(layer) == local.where(task="b").slots(layer)
        for name, weight in local.without(task="b").weights(layer).items():
            assert_close(in_memory.without(task="b").weights(layer)[name], weight, rtol=0, atol=0)
    facts = in_memory.summary()
    assert facts.pop("path") == "memory"
    varying = ("path", "run", "created")
    assert {**facts, **dict.fromkeys(varying, 0)} == {**local.summary(), **dict.fromkeys(varying, 0)}


def recorded() -> tuple[InMemory, Training]:
    memory, training = InMemory(), Training()
    assert training.record(memory) == Told(promised=STEPS)
    return memory, training


def test_a_run_in_memory_goes_on_from_a_checkpoint() -> None:
    memory, first = recorded()
    whole = sealed(memory)
    again = Training()
    again.restore(first.checkpoints[SYNCED[0]])
    assert again.record(memory, resume=SYNCED[0]) == Told(promised=STEPS)
    assert sealed(memory) == whole


def test_a_run_in_memory_is_cut_back_before_it_goes_on() -> None:
    memory, _ = recorded()
    resumption = Resumption(memory, SYNCED[0])
    resumption.cut()
    resumption.lock.release()
    assert Run(memory).steps == SYNCED[0]


def test_a_run_in_memory_does_not_go_on_from_another_state() -> None:
    memory, _ = recorded()
    before = objects(memory)
    with pytest.raises(CannotResume, match=f"is off by .* at step {SYNCED[0]} of memory: restore"):
        Training(course=1).record(memory, resume=SYNCED[0])
    with pytest.raises(CannotResume, match="memory was never sealed at step 2; it can be resumed from 0, 1, 3, 4"):
        Training().record(memory, resume=2)
    assert objects(memory) == before


def test_a_run_in_memory_is_overwritten_only_if_told() -> None:
    memory, _ = recorded()
    run = Run(memory).manifest.run
    with pytest.raises(RunExists, match="memory already holds a run"):
        dualform.record(*network(), memory).__enter__()
    assert Run(memory).manifest.run == run
    assert Training().record(memory, overwrite=True) == Told(promised=STEPS)
    assert Run(memory).manifest.run != run


def network() -> tuple[Any, Any]:
    training = Training()
    return training.model, training.optimizer


def test_a_second_recorder_of_the_same_memory_is_refused() -> None:
    memory = InMemory()
    with dualform.record(*network(), memory):
        with pytest.raises(RunExists, match="another recorder is recording to memory"):
            dualform.record(*network(), memory, overwrite=True).__enter__()
        assert dualform.load(memory).steps == 0


def test_a_memory_that_holds_no_run_says_so() -> None:
    with pytest.raises(RunError, match="memory is not a dualform run: it has no manifest.json"):
        dualform.load(InMemory())


def test_damage_in_memory_is_told_by_name() -> None:
    memory, _ = recorded()
    content = np.frombuffer(objects(memory)["shard-000002.safetensors"], dtype=np.uint8).copy()
    content[-1] ^= 1
    lock = memory.lock()
    lock.write("shard-000002.safetensors", [content])
    with pytest.raises(RunError, match="memory:shard-000002.safetensors is damaged: the checksum of .* does not fit"):
        dualform.load(memory).verify()
    lock.write("shard-000002.safetensors", [content[:-1]])
    with pytest.warns(UserWarning, match="memory:shard-000002.safetensors is a corrupt shard"):
        assert dualform.load(memory).steps == SYNCED[0]


def test_a_run_in_memory_has_no_directory() -> None:
    memory, _ = recorded()
    with pytest.raises(RunError, match="the run in memory has no directory"):
        _ = dualform.load(memory).path
