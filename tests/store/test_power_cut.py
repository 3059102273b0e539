"""After a power cut at any moment, a run has every step that was said to be safe, and none that it never had.

A recording is done once, and every call noted that changes the disk. For each moment of it, the disk is put up
elsewhere in all the ways a cut may leave it, with and without what nobody had flushed, and the run is opened.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dualform.errors import RunError
from dualform.store import Run
from dualform.store.directory import claim
from tests.store.faults import STEPS, Disk, Point, Shards, Told, Training, sealed, small_chapters
from tests.store.power import Model, Tree, plant, tree_of
from tests.tally import TRIED

pytestmark = pytest.mark.slow

RESUMED = 3  # the end of a chapter; two shards come after it


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_chapters():
        yield


@dataclass(frozen=True)
class Found:
    """A run, opened: its random name, and what is in it."""

    run: str
    shards: Shards

    @property
    def steps(self) -> int:
        return int(self.shards[-1]["last_step"])

    def begins(self, other: "Found") -> bool:
        return self.run == other.run and self.shards == other.shards[: len(self.shards)]


def found(path: Path) -> Found | None:
    """None: there is no run. Half a run is an error."""
    try:
        run = Run(path)
    except RunError:
        return None
    return Found(run.manifest.run, sealed(path))


@dataclass(frozen=True)
class Recording:
    """What was done to a disk, and after how many points something was promised."""

    before: Model
    points: list[Point]
    promises: list[tuple[int, int]]
    path: str
    overwrite: bool
    whole: Found

    def promised(self, moment: int) -> int | None:
        """The steps said to be safe by then; None: the recording was not entered yet."""
        return max((steps for points, steps in self.promises if points <= moment), default=None)

    def has_removed(self, moment: int) -> bool:
        return any(point.call == "unlink" for point in self.points[:moment])


def recorded(
    training: Training, disk: Path, path: str = "run", overwrite: bool = False, resume: int | None = None
) -> Recording:
    """A recording, and the proof that nothing it does to the disk goes unnoticed."""
    before, replayed = Model(disk), Model(disk)
    promises: list[tuple[int, int]] = []
    with Disk(disk) as watched:
        training.promise = lambda steps: promises.append((len(watched.points), steps))
        assert training.record(disk / path, overwrite=overwrite, resume=resume) == Told(promised=STEPS)
    for point in watched.points:
        replayed.do(point)
    assert replayed.now() == tree_of(disk)
    whole = found(disk / path)
    assert whole is not None
    return Recording(before, watched.points, promises, path, overwrite, whole)


Allowed = Callable[[int, Found | None], None]  # asserts: at a moment, this is what may be found


def cut_everywhere(recording: Recording, in_order: bool, elsewhere: Path, check: Allowed) -> None:
    opened: dict[str, Found | None] = {}
    for moment in range(len(recording.points) + 1):
        if moment:
            recording.before.do(recording.points[moment - 1])
        for tree in recording.before.after_a_cut(in_order):
            try:
                check(moment, _open(tree, recording, elsewhere, opened))
            except Exception as error:
                error.add_note(_where(recording, moment, tree))
                raise


def _open(tree: Tree, recording: Recording, elsewhere: Path, opened: dict[str, Found | None]) -> Found | None:
    """Many moments leave the same; it is opened once. Where no run is, the same command can start again."""
    digest = hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()
    TRIED["states after a power cut: everything promised is there"] += 1
    if digest not in opened:
        plant(tree, elsewhere / digest)
        path = elsewhere / digest / recording.path
        opened[digest] = found(path)
        if opened[digest] is None:
            claim(path, recording.overwrite).release()
        shutil.rmtree(elsewhere / digest)
    return opened[digest]


def _where(recording: Recording, moment: int, tree: Tree) -> str:
    done = f"after {moment} points, the last one {recording.points[moment - 1]}" if moment else "before anything"
    return f"{done}; left: " + ", ".join(f"{name} ({len(content):,} bytes)" for name, content in sorted(tree.items()))


def check_kept(now: Found | None, recording: Recording, moment: int) -> None:
    """What was promised is there, and what is there is the recording's."""
    assert now is not None
    assert now.begins(recording.whole)
    assert now.steps >= (recording.promised(moment) or 0)


in_any_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "in any order"])


@in_any_order
def test_a_cut_while_a_run_is_recorded(tmp_path: Path, in_order: bool) -> None:
    (tmp_path / "disk").mkdir()
    recording = recorded(Training(), tmp_path / "disk", "runs/today/run")

    def check(moment: int, now: Found | None) -> None:
        if recording.promised(moment) is not None or now is not None:
            check_kept(now, recording, moment)

    cut_everywhere(recording, in_order, tmp_path / "elsewhere", check)


@in_any_order
def test_a_cut_while_a_run_is_overwritten(tmp_path: Path, in_order: bool) -> None:
    """The older run, as far as it is left; then none; then the new one. Never a bit of both."""
    (tmp_path / "disk").mkdir()
    older = recorded(Training(course=1), tmp_path / "disk").whole
    (tmp_path / "disk" / "run" / "inputs.safetensors").write_bytes(b"beside the run")
    recording = recorded(Training(), tmp_path / "disk", overwrite=True)

    def check(moment: int, now: Found | None) -> None:
        if not recording.has_removed(moment):
            assert now == older
        elif recording.promised(moment) is not None:
            check_kept(now, recording, moment)
        else:
            assert now is None or now.begins(older) or now.begins(recording.whole)

    cut_everywhere(recording, in_order, tmp_path / "elsewhere", check)


@in_any_order
def test_a_cut_while_a_run_is_cut_back_and_goes_on(tmp_path: Path, in_order: bool) -> None:
    """With other examples than before, so that old and new chapters can be told apart."""
    (tmp_path / "disk").mkdir()
    first, again = Training(), Training(course=2)
    older = recorded(first, tmp_path / "disk").whole
    again.restore(first.checkpoints[RESUMED])
    recording = recorded(again, tmp_path / "disk", resume=RESUMED)
    assert sum(point.call == "unlink" for point in recording.points) == 2
    assert recording.whole.shards[-1] != older.shards[-1]

    def check(moment: int, now: Found | None) -> None:
        assert now is not None
        if not recording.has_removed(moment):
            assert now == older
        elif recording.promised(moment) is not None:
            check_kept(now, recording, moment)
        else:
            assert now.begins(older)
            assert now.steps >= RESUMED

    cut_everywhere(recording, in_order, tmp_path / "elsewhere", check)


def test_a_cut_soon_after_the_loop_itself_made_the_directory(tmp_path: Path) -> None:
    """Nobody flushed it before; but what is promised is promised."""
    (tmp_path / "disk").mkdir()
    recording = recorded(Made(), tmp_path / "disk")

    def check(moment: int, now: Found | None) -> None:
        if recording.promised(moment) is not None or now is not None:
            check_kept(now, recording, moment)

    cut_everywhere(recording, True, tmp_path / "elsewhere", check)


class Made(Training):
    """A training that makes the directory for its run, as many do."""

    def record(self, path: Any, **options: Any) -> Told:
        path.mkdir()
        return super().record(path, **options)
