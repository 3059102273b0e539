"""Whatever the disk does, training gets one clear error, and no step is lost that was said to be safe.

A small training is recorded once for every point at which the writer changes the disk and every fault there can
be. What is left each time is a prefix of the undisturbed run, bit for bit, from which the same run goes on.
"""

import itertools
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dualform
from benchmarks.contents import Bits, contents
from dualform.errors import RunError, StorageError
from dualform.recorder.snapshot import Snapshots
from dualform.store import Run, RunWriter
from dualform.store import writer as writing
from tests.recorder.loops import record
from tests.store.faults import FAULTS, STEPS, SYNCED, Disk, Fault, Point, Shards, Told, Training, sealed, small_chapters
from tests.tally import TRIED

pytestmark = pytest.mark.slow

T = TypeVar("T")

_KEPT = r"The first (\d+) steps are kept"
_PATIENCE = 60  # seconds; a case takes a twentieth of one
_gone_on: set[Any] = set()  # what was left by faults after which the same run could go on

# Faults that need no bytes to be written.
_OF_REMOVALS = [name for name, fault in FAULTS.items() if fault.taken is None and not fault.harmless]


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_chapters():
        yield


@dataclass(frozen=True)
class Undisturbed:
    """A run as it should be, with a checkpoint of each step."""

    path: Path
    checkpoints: dict[int, Any]
    points: list[Point]
    shards: Shards
    contents: dict[str, Bits]


def undisturbed(path: Path, course: int = 0) -> Undisturbed:
    path.parent.mkdir()
    training = Training(course)
    with Disk(path.parent) as disk:
        assert training.record(path) == Told(promised=STEPS)
    assert not disk.handles
    return Undisturbed(path, training.checkpoints, disk.points, sealed(path), contents(path))


@pytest.fixture
def whole(tmp_path: Path) -> Undisturbed:
    return undisturbed(tmp_path / "whole" / "run")


def in_time(action: Callable[[], T]) -> T:
    """What an action returns, from a thread of its own: one that never ends is a failure, and not the end of tests."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(timeout=_PATIENCE)


def no_writer_is_left() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name.startswith("dualform-writer")]


def disturbed(training: Training, path: Path, fault: Fault, at: int, **options: Any) -> Told:
    """Record with a fault, and check what was heard of it."""
    with Disk(path.parent, fault, at) as disk:
        told = in_time(lambda: training.record(path, **options))
    assert len(disk.points) > at
    assert not disk.handles
    assert no_writer_is_left()
    closing = disk.points[at].call == "close" and disk.points[at].of_directory  # to which nothing was written
    assert len(told.errors) == (0 if fault.harmless or (closing and not fault.lasting) else 1)
    check_clear(told, path)
    return told


def check_clear(told: Told, path: Path) -> None:
    for error in told.errors:
        assert type(error) is StorageError
        assert str(path) in str(error)


def check_left(path: Path, told: Told, whole: Undisturbed) -> None:
    """What was promised is there, and what is there is as it was."""
    if not told.errors:
        assert contents(path) == whole.contents
    if told.promised is None and not shard_files(path):
        with pytest.raises(RunError):
            Run(path)
        return
    found = sealed(path)
    assert found == whole.shards[: len(found)]
    said = [int(match[1]) for error in told.errors if (match := re.search(_KEPT, str(error)))]
    assert found[-1]["last_step"] >= max([told.promised or 0, *said])


def shard_files(path: Path) -> list[Path]:
    return list(path.glob("shard-*.safetensors"))


def check_goes_on_once(path: Path, whole: Undisturbed) -> None:
    """Many faults leave the same; shards were found to be the same already, and nothing of a `.tmp` is ever read."""
    left = tuple(sorted((file.name, file.stat().st_size) for file in path.glob("*")))
    if left not in _gone_on:
        check_goes_on(path, whole)
        _gone_on.add(left)


def check_goes_on(path: Path, whole: Undisturbed) -> None:
    """From the last sealed step, or by the very same command if there is none."""
    training, options = Training(), {}
    if shard_files(path):
        options["resume"] = Run(path).steps
        training.restore(whole.checkpoints[options["resume"]])
    assert training.record(path, **options) == Told(promised=STEPS)
    assert contents(path) == whole.contents
    assert not list(path.glob("*.tmp"))


def cases(fault: Fault, points: list[Point], tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Each point that a fault fits, and a directory for a run with it; a failure says which it was."""
    for at in (number for number, point in enumerate(points) if fault.fits(point)):
        case = tmp_path / f"case {at} {points[at].call} {points[at].path.name}"
        case.mkdir()
        yield at, case / "run"
        TRIED["faults of the disk: one clear error, and nothing lost that was safe"] += (
            1  # not reached if a check failed
        )
        shutil.rmtree(case)


def until_it_writes(points: list[Point]) -> list[Point]:
    """The points at which an older run is removed."""
    return points[: next(number for number, point in enumerate(points) if point.path.suffix == ".tmp")]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_point(tmp_path: Path, whole: Undisturbed, name: str) -> None:
    assert list(map(str, whole.points[-2:])) == ["close run/writer.lock", "close run"]
    for at, path in cases(FAULTS[name], whole.points[:-2], tmp_path):
        told = disturbed(Training(), path, FAULTS[name], at)
        check_left(path, told, whole)
        if told.errors:
            check_goes_on_once(path, whole)


@pytest.mark.parametrize("last", [1, 2])
def test_a_lock_that_cannot_be_closed_is_no_harm(tmp_path: Path, whole: Undisturbed, last: int) -> None:
    """All is on the disk by then, and the lock is given back whatever closing it says."""
    at, path = len(whole.points) - last, tmp_path / "run"
    with Disk(tmp_path, FAULTS["EIO once"], at):
        assert Training().record(path) == Told(promised=STEPS)
    check_left(path, Told(promised=STEPS), whole)
    TRIED["faults of the disk: one clear error, and nothing lost that was safe"] += 1


@pytest.mark.parametrize("name", _OF_REMOVALS)
def test_a_fault_while_a_run_is_cut_back(tmp_path: Path, whole: Undisturbed, name: str) -> None:
    """Three shards are to go; however many are gone, the rest is a run."""

    def again() -> Training:
        training = Training()
        training.restore(whole.checkpoints[SYNCED[0]])
        return training

    shutil.copytree(whole.path, tmp_path / "once" / "run")
    with Disk(tmp_path / "once") as disk:
        again().record(tmp_path / "once" / "run", resume=SYNCED[0])
    points = until_it_writes(disk.points)
    assert sum(point.call == "unlink" for point in points) == 3
    for at, path in cases(FAULTS[name], points, tmp_path):
        shutil.copytree(whole.path, path)
        told = disturbed(again(), path, FAULTS[name], at, resume=SYNCED[0])
        check_left(path, Told(max(told.promised or 0, SYNCED[0]), told.errors), whole)
        check_goes_on_once(path, whole)


def test_an_unfinished_shard_goes_too_when_a_run_is_cut_back(tmp_path: Path, whole: Undisturbed) -> None:
    """One that no shard of the run to come would replace."""
    (whole.path / "shard-000009.safetensors.tmp").write_bytes(b"half of a shard")
    check_goes_on(whole.path, whole)


@pytest.mark.parametrize("name", _OF_REMOVALS)
def test_a_fault_while_a_run_is_overwritten(tmp_path: Path, whole: Undisturbed, name: str) -> None:
    """There is the older run, as far as it is left, or the new one, or none."""
    older = undisturbed(tmp_path / "older" / "run", course=1)
    shutil.copytree(older.path, tmp_path / "once" / "run")
    with Disk(tmp_path / "once") as disk:
        Training().record(tmp_path / "once" / "run", overwrite=True)
    points = until_it_writes(disk.points)
    assert sum(point.call == "unlink" for point in points) == 5
    for at, path in cases(FAULTS[name], points, tmp_path):
        shutil.copytree(older.path, path)
        told = disturbed(Training(), path, FAULTS[name], at, overwrite=True)
        check_left(path, told, older if told.promised is None else whole)
        assert Training().record(path, overwrite=True) == Told(promised=STEPS)
        assert contents(path) == whole.contents


DEATHS = {
    "no memory": (writing, "write_shard", MemoryError("no room for a buffer"), (0, 1, 4)),
    "a bug": (writing, "write_shard", RuntimeError("a bug"), (0, 1, 4)),
    "no thread": (threading.Thread, "start", RuntimeError("can't start new thread"), (0,)),  # later there is one
}


@pytest.mark.parametrize(("name", "moment"), [(name, moment) for name in DEATHS for moment in DEATHS[name][-1]])
def test_a_writer_that_dies(tmp_path: Path, whole: Undisturbed, name: str, moment: int) -> None:
    """After entering, or after a sync."""
    path, (where, what, error, _) = tmp_path / "run", DEATHS[name]
    with pytest.MonkeyPatch.context() as patch:
        training = Training(promise=lambda step: patch.setattr(where, what, _raises(error)) if step == moment else None)
        told = in_time(lambda: training.record(path))
    assert str(error) in str(told.errors[0])
    check_stopped_at(moment, told, path)
    check_left(path, told, whole)
    check_goes_on(path, whole)


def check_stopped_at(step: int, told: Told, path: Path) -> None:
    assert (told.promised, len(told.errors)) == (step, 1)
    check_clear(told, path)
    assert no_writer_is_left()


def _raises(error: BaseException) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("moment", [0, 1, 4])
def test_a_directory_that_is_deleted(tmp_path: Path, whole: Undisturbed, moment: int, parent: bool) -> None:
    path = tmp_path / "runs" / "run"
    gone = path.parent if parent else path
    training = Training(promise=lambda step: shutil.rmtree(gone) if step == moment else None)
    told = in_time(lambda: training.record(path))
    assert "the directory was removed" in str(told.errors[0])
    check_stopped_at(moment, told, path)
    assert not gone.exists()
    check_goes_on(path, whole)


def test_nothing_is_said_to_be_kept_in_a_directory_that_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    training = Training(promise=lambda step: shutil.rmtree(path) if step == 1 else None)
    assert not re.search(_KEPT, str(training.record(path).errors[0]))


def test_an_error_of_the_loop_itself_comes_first(tmp_path: Path) -> None:
    """That the disk failed as well is added to it."""
    with Disk(tmp_path) as disk:
        Training().record(tmp_path / "once")
    at = next(number for number, point in enumerate(disk.points) if "shard-000001" in point.path.name)
    training = Training()
    with (
        Disk(tmp_path, FAULTS["EIO once"], at),
        pytest.raises(ZeroDivisionError) as raised,
        record(training.model, training.optimizer, tmp_path / "run") as recorder,
    ):
        training.step(recorder)
        raise ZeroDivisionError
    assert f"could not keep the last steps: cannot write {tmp_path / 'run'}" in raised.value.__notes__[0]
    assert no_writer_is_left()


INTERRUPTS = {
    # name: what is called, how often it has been when the interrupt comes, before or after its work; steps by then
    "sync waits": (Future, "result", 1, "before", 1),
    "sync has waited": (Future, "result", 1, "after", 1),
    "a full chapter is put together": (RunWriter, "put", 2, "before", 3),
    "the state after a full chapter was taken": (Snapshots, "changed", 2, "after", 3),
    "a full chapter waits for the one before": (RunWriter, "wait", 3, "before", 3),
    "a full chapter is about to be handed over": (ThreadPoolExecutor, "submit", 2, "before", 3),
    "a full chapter was just handed over": (ThreadPoolExecutor, "submit", 2, "after", 3),
    "a full chapter was handed over": (Future, "add_done_callback", 2, "before", 3),
}


@pytest.mark.parametrize("name", INTERRUPTS)
def test_an_interrupt_while_a_chapter_is_sealed(tmp_path: Path, whole: Undisturbed, name: str) -> None:
    where, what, number, when, steps = INTERRUPTS[name]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, what, _interrupted(getattr(where, what), number, when))
        Training().record(tmp_path / "run")
    check_interrupted(tmp_path / "run", steps, whole)


def _interrupted(original: Callable[..., Any], number: int, when: str) -> Callable[..., Any]:
    calls = itertools.count(1)

    def call(*args: Any, **named: Any) -> Any:
        struck = next(calls) == number
        if struck and when == "before":
            raise KeyboardInterrupt
        result = original(*args, **named)
        if struck:
            raise KeyboardInterrupt
        return result

    return call


@pytest.mark.parametrize("steps", range(1, STEPS))
def test_an_interrupt_between_two_steps(tmp_path: Path, whole: Undisturbed, steps: int) -> None:
    training = Training()
    with pytest.raises(KeyboardInterrupt), record(training.model, training.optimizer, tmp_path / "run") as recorder:
        for _ in range(steps):
            training.step(recorder)
        raise KeyboardInterrupt
    check_interrupted(tmp_path / "run", steps, whole)
    assert Run(tmp_path / "run").shards[-1].has_state
    check_goes_on(tmp_path / "run", whole)


def check_interrupted(path: Path, steps: int, whole: Undisturbed) -> None:
    """Every step that was taken is there, as it would be in the undisturbed run; only the state may be missing."""
    assert no_writer_is_left()
    memory = dualform.load(path)
    assert memory.steps == steps
    assert f"{steps} (ended by KeyboardInterrupt)" in str(memory)
    certificate = memory.verify()
    assert certificate.relative_error < 1e-12
    assert certificate.unread is None
    for name, (dtype, _, bits) in contents(path).items():
        if not name.startswith(("end", "state/")):
            assert whole.contents[name][0] == dtype
            assert whole.contents[name][2].startswith(bits)
    assert contents(path)["slots/0/keys"][1][0] == 6 * steps
