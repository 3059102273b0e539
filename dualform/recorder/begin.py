"""Begin a new run: in one process, or in all processes of a training, each with a chain of shards of its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from dualform.errors import RecordingError
from dualform.recorder.world import World
from dualform.store import Column, Manifest, Rows, RunWriter, StepRecord, Where


class StepSink(Protocol):
    """What takes audited steps: the writer of a run, or whoever wants slots that are not to be written."""

    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def full(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def snapshot_nbytes(self) -> int: ...

    def check(self) -> None: ...
    def append(self, step: StepRecord, tags: Mapping[str, str]) -> None: ...
    def drop(self, layers: Iterable[str]) -> None: ...
    def put(self, merged: Mapping[str, Rows]) -> None: ...
    def note(self, text: str) -> None: ...
    def seal(self, state: Mapping[str, Column], ended: str | None = None, done: Callable[[], None] = ...) -> None: ...
    def wait(self) -> None: ...
    def close(self, state: Mapping[str, Column], ended: str) -> None: ...
    def abandon(self) -> None: ...


class Start(NamedTuple):
    """Where a run begins, or goes on."""

    where: Where
    overwrite: bool = False
    resume: int | None = None  # the step to go on from
    sink: StepSink | None = None  # takes the steps from there on, in place of a run


def begin_run(
    where: Where, manifest: Manifest, state: Mapping[str, Column], chapter_bytes: int, overwrite: bool, world: World
) -> RunWriter:
    """Return the writer of a new run; the first process makes the run, and the others join it."""
    if world.size == 1:
        return RunWriter.begin(where, manifest, state, chapter_bytes, overwrite)
    shared = replace(world.gather(manifest)[0], world=world.size)
    world.all(lambda: _check_alike(manifest, shared))
    begun: list[RunWriter] = []
    try:
        if world.rank == 0:
            world.all(lambda: begun.append(RunWriter.begin(where, shared, state, chapter_bytes, overwrite)))
            world.wait()
        else:
            world.wait()  # until there is a run
            world.all(lambda: begun.append(RunWriter.join(where, shared, chapter_bytes, world.rank)))
    except BaseException:
        for writer in begun:
            writer.abandon()
        raise
    return begun[0]


def _check_alike(manifest: Manifest, first: Manifest) -> None:
    """Raise unless a process records what the first one does."""
    for what in ("layers", "storage", "optimizers", "others"):
        if getattr(manifest, what) != getattr(first, what):
            raise RecordingError(f"it would record other {what} than process 0: call dualform.record alike in all")
