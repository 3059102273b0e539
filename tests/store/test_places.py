"""Runs stay where they are, whole, whatever is done to the directories around them and however many files they have."""

import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import CannotResume, DualformError, RunError, RunExists, StorageError
from dualform.store import InMemory, Run
from tests.recorder.loops import network, record, sgd, step

Recorded = tuple[nn.Module, Any]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def training() -> Recorded:
    model = network(nn.ReLU())
    return model, sgd(model)


def train(recorder: dualform.Recorder, trained: Recorded, steps: int) -> None:
    for _ in range(steps):
        recorder.tag(id=torch.arange(6))
        step(*trained)
        recorder.sync()


def check(path: Path, steps: int) -> None:
    """Everything is there, exact, and nothing is left over."""
    memory = dualform.load(path)
    assert (memory.steps, memory.verify().ok) == (steps, True)
    assert len(list(path.glob("shard-*"))) == len(Run(path).shards)


def test_a_relative_path_is_resolved_once(tmp_path: Path) -> None:
    """Somebody changes the directory, to one where a run of the same name is."""
    (tmp_path / "elsewhere").mkdir()
    other, first = training(), training()
    with record(*other, tmp_path / "elsewhere/run") as recorder:
        train(recorder, other, 3)
    untouched = {file.name: file.read_bytes() for file in Path("elsewhere/run").iterdir()}
    with record(*first, "run") as recorder:
        train(recorder, first, 1)
        os.chdir("elsewhere")
        train(recorder, first, 1)
    check(tmp_path / "run", 2)
    check(tmp_path / "elsewhere/run", 3)
    assert {file.name: file.read_bytes() for file in (tmp_path / "elsewhere/run").iterdir()} == untouched


def test_a_path_is_resolved_when_record_is_called(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = training()
    recorder = record(*first, "run")
    os.chdir("elsewhere")
    with recorder:
        train(recorder, first, 1)
    check(tmp_path / "run", 1)
    assert recorder.path == tmp_path / "run"


def test_a_memory_is_read_where_it_was_opened(tmp_path: Path) -> None:
    first = training()
    with record(*first, "run") as recorder:
        train(recorder, first, 1)
    (tmp_path / "elsewhere").mkdir()
    memory = dualform.load("run")
    os.chdir("elsewhere")
    assert memory.path == tmp_path / "run"
    assert memory.verify().ok


def test_a_run_goes_on_in_its_directory_by_another_name(tmp_path: Path) -> None:
    """And another run takes the name it had."""
    first, second = training(), training()
    recorder = record(*first, tmp_path / "run").start()
    train(recorder, first, 2)
    (tmp_path / "run").rename(tmp_path / "renamed")
    with record(*second, tmp_path / "run") as other:
        train(other, second, 1)
        train(recorder, first, 2)
        train(other, second, 1)
    train(recorder, first, 1)
    with pytest.warns(UserWarning, match=r"run was renamed while it was recorded to: all of the run is in"):
        recorder.stop()
    check(tmp_path / "renamed", 5)
    check(tmp_path / "run", 2)


def test_a_directory_that_is_replaced_by_its_copy_is_not_written_to(tmp_path: Path) -> None:
    first = training()
    message = "the directory was removed while it was recorded to"
    with pytest.raises(StorageError, match=message), record(*first, tmp_path / "run") as recorder:
        train(recorder, first, 2)
        subprocess.run(["sh", "-c", "cp -r run copy && rm -r run && mv copy run"], check=True)
        train(recorder, first, 1)
    check(tmp_path / "run", 2)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_shard_that_is_removed_is_noticed(tmp_path: Path, lost: int) -> None:
    first = training()
    kept = max(0, lost - 1)
    message = rf"shard-00000{lost}.safetensors was removed from .*run while it was recorded to. The first {kept} steps"
    with pytest.raises(StorageError, match=message), record(*first, tmp_path / "run") as recorder:
        train(recorder, first, 3)
        (tmp_path / f"run/shard-00000{lost}.safetensors").unlink()
        train(recorder, first, 1)
    if kept:
        with pytest.warns(UserWarning, match="is left out") if lost < 3 else warnings.catch_warnings():
            assert dualform.load(tmp_path / "run").steps == kept


THESIS = {
    "manifest.json": '{"name": "my thesis", "files": ["thesis.tex"]}',
    "thesis.tex": "Chapter 1",
    "chapters/1": "",
}


@pytest.mark.parametrize(
    "manifest", [THESIS["manifest.json"], "", "[]", "dualform", '{"format": "Dualform"}', "[" * 1000, '{"format": 1}']
)
def test_overwriting_never_touches_what_is_no_run(tmp_path: Path, manifest: str) -> None:
    for name, content in (THESIS | {"manifest.json": manifest}).items():
        (tmp_path / "thesis" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "thesis" / name).write_text(content)
    with pytest.raises(RunExists, match="is not empty and not a dualform run; choose another directory"):
        record(*training(), tmp_path / "thesis", overwrite=True).start()
    for name, content in (THESIS | {"manifest.json": manifest}).items():
        assert (tmp_path / "thesis" / name).read_text() == content


@pytest.mark.parametrize("damaged", ["", "a checksum", "a version"])
def test_overwriting_a_run_leaves_what_is_not_its_own(tmp_path: Path, damaged: str) -> None:
    first, second = training(), training()
    with record(*first, tmp_path / "run") as recorder:
        train(recorder, first, 3)
    manifest = tmp_path / "run/manifest.json"
    text = manifest.read_text()
    manifest.write_text({"": text, "a checksum": text.replace("float64", "float32"), "a version": text}[damaged])
    if damaged == "a version":
        manifest.write_text(re.sub(r'"version": \d+', '"version": 1', text))
    (tmp_path / "run/thesis.tex").write_text("Chapter 1")
    (tmp_path / "run/figures").mkdir()
    (tmp_path / "run/figures/shard-000000.safetensors").write_text("a figure")
    with pytest.raises(RunExists, match="already holds a run"):
        record(*second, tmp_path / "run").start()
    with record(*second, tmp_path / "run", overwrite=True) as recorder:
        train(recorder, second, 1)
    check(tmp_path / "run", 1)
    assert (tmp_path / "run/thesis.tex").read_text() == "Chapter 1"
    assert (tmp_path / "run/figures/shard-000000.safetensors").read_text() == "a figure"


MANY = 400


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a shard a step, with the training's state at the end."""
    torch.manual_seed(0)
    directory, trained, memory = tmp_path_factory.mktemp("many"), training(), InMemory()
    with record(*trained, memory) as recorder:
        train(recorder, trained, MANY)
    (directory / "run").mkdir()
    for name in memory.names():
        blob = memory.open(name)
        (directory / "run" / name).write_bytes(blob.read(0, blob.size).tobytes())
    torch.save([part.state_dict() for part in trained], directory / "state.pt")
    return directory


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """So many that a process that keeps none open has room to work."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 32
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("few_descriptors")
def test_many_shards_take_no_descriptors(many_shards: Path) -> None:
    memory = dualform.load(many_shards / "run")
    assert (memory.steps, memory.verify().ok) == (MANY, True)


@pytest.mark.usefixtures("few_descriptors")
def test_a_run_of_many_shards_goes_on_with_few_descriptors(many_shards: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", many_shards / "run", tmp_path / "run"], check=True)
    trained = training()
    for part, state in zip(trained, torch.load(many_shards / "state.pt"), strict=True):
        part.load_state_dict(state)
    with record(*trained, tmp_path / "run", resume=MANY) as recorder:
        train(recorder, trained, 1)
    check(tmp_path / "run", MANY + 1)


NO_DESCRIPTORS = """
import os, resource, sys
import dualform, torch
sys.path.insert(0, {project!r})
from tests.store.test_places import record, training
trained = training()
for part, state in zip(trained, torch.load({state!r}), strict=True):
    part.load_state_dict(state)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = [os.open(os.devnull, os.O_RDONLY)]
while taken[-1] < 63:
    taken.append(os.open(os.devnull, os.O_RDONLY))
for left in range(4):
    for attempt in (lambda: dualform.load({run!r}), lambda: record(*trained, {run!r}, resume={steps}).start().stop()):
        try:
            attempt()
            print("done")
        except dualform.errors.DualformError as error:
            print(error)
    os.close(taken.pop())
"""


def test_no_descriptors_left_is_no_damage(many_shards: Path, tmp_path: Path) -> None:
    """What is asked is done, or an error says that a file could not be opened; no shard is given up for it."""
    subprocess.run(["cp", "-r", many_shards / "run", tmp_path / "run"], check=True)
    script = NO_DESCRIPTORS.format(
        project=str(Path(__file__).parents[2]),
        state=str(many_shards / "state.pt"),
        run=str(tmp_path / "run"),
        steps=MANY,
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    outcomes = ["done" if line == "done" else "Too many open files" in line for line in done.stdout.splitlines()]
    assert len(outcomes) == 8, done.stderr
    assert all(outcomes), done.stdout
    assert {*outcomes} == {True, "done"}  # both were tried
    check(tmp_path / "run", MANY)


def test_a_shard_that_may_not_be_read_is_not_damaged(many_shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open

    def refuse(path: Path, *rest: Any) -> Any:
        if path.name == "shard-000007.safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *rest)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RunError, match=r"cannot open .*shard-000007.safetensors now, so the run is not read"):
        dualform.load(many_shards / "run")
    with pytest.raises(RunError, match="cannot open"):
        record(*training(), many_shards / "run", resume=5).start()
    monkeypatch.undo()
    assert Run(many_shards / "run").steps == MANY


def test_only_a_step_before_the_damage_can_be_resumed(many_shards: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", many_shards / "run", tmp_path / "run"], check=True)
    damaged = tmp_path / "run/shard-000009.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(CannotResume, match="was never sealed at step 9"):
        record(*training(), tmp_path / "run", resume=9).start()
    with pytest.raises(DualformError):
        record(*training(), tmp_path / "run").start()
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        file.name for file in (many_shards / "run").iterdir()
    }
