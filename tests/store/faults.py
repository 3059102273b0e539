"""A disk that fails where it is told to, and a small training to be recorded on it.

    with Disk(tmp_path, FAULTS["EIO once"], at=17) as disk:
        told = Training().record(tmp_path / "run")

Each call of `os` that changes something below a directory is a point; points come in the same order whenever
the same training is recorded. Flushing is pretended: no test cuts the power, and all of them would wait for it.
"""

import copy
import errno
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RecordingError, StorageError
from dualform.store import Run, Where
from tests.recorder.loops import network, record, sgd, step

if sys.platform != "win32":
    import fcntl

_CALLS = ("open", "write", "truncate", "fsync", "close", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")
_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True)
class Point:
    """A call that changes the disk, or flushes it. Paths are from the disk's directory on."""

    call: str
    path: Path
    target: Path | None = None  # of a renaming
    flags: int = 0  # of an opening
    start: int = 0  # where bytes are written; where a file is cut off
    content: bytes = b""
    of_directory: bool = False

    def __str__(self) -> str:
        return f"{self.call} {self.path}"


@dataclass(frozen=True)
class Fault:
    """What happens at a point: an error, once or from there on, before or after the work is done.

    A write may take no more than a share of its bytes; then the error, if any, comes with the call after it.
    """

    code: int | None = None
    lasting: bool = False
    late: bool = False
    taken: float | None = None
    fits: Callable[[Point], bool] = lambda point: True
    harmless: bool = False

    def error(self, point: Point, distance: int) -> OSError | None:
        """The error at a point that comes so many points after the fault's own."""
        first = 0 if self.taken is None else 1
        struck = distance == first or (self.lasting and distance > first and not self._spares(point))
        return OSError(self.code, os.strerror(self.code), str(point.path)) if struck and self.code else None

    def _spares(self, point: Point) -> bool:
        """A handle can always be closed; a full disk takes no more bytes, but lets files go."""
        return point.call == "close" or (self.code == errno.ENOSPC and point.call == "unlink")


def _writes(point: Point) -> bool:
    return point.call == "write"


def _can_be_done_and_fail(point: Point) -> bool:
    return point.call in ("open", "write", "truncate", "replace", "unlink") and not point.of_directory


def _may_be_unknown(point: Point) -> bool:
    """Some file systems have no unbuffered files, and some have nothing to flush in a directory."""
    return bool(point.flags & _DIRECT) or (point.call == "fsync" and point.of_directory)


_CODES = {name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EROFS", "EDQUOT")}
FAULTS = {
    **{f"{name} once": Fault(code) for name, code in _CODES.items()},
    "EIO for good: the disk is gone": Fault(errno.EIO, lasting=True),
    "ENOSPC for good: the disk is full": Fault(errno.ENOSPC, lasting=True),
    "EROFS for good: nothing can be changed any more": Fault(errno.EROFS, lasting=True),
    "EIO after it was done": Fault(errno.EIO, late=True, fits=_can_be_done_and_fail),
    "a short write": Fault(taken=0.4, fits=_writes, harmless=True),
    "a short write, then ENOSPC": Fault(errno.ENOSPC, taken=0.4, fits=_writes),
    "a short write, then ENOSPC for good": Fault(errno.ENOSPC, taken=0.4, lasting=True, fits=_writes),
    "a write of nothing": Fault(taken=0, fits=_writes),
    "EINVAL of what is not known": Fault(errno.EINVAL, fits=_may_be_unknown, harmless=True),
}


class Disk:
    """Counts the points below a directory while it is entered, and has one fault at most."""

    def __init__(self, directory: Path, fault: Fault | None = None, at: int = 0) -> None:
        self.directory = directory
        self.points: list[Point] = []
        self.handles: dict[int, Path] = {}  # those opened below the directory, until they are closed
        self._fault, self._at = fault or Fault(), at
        self._turn = threading.RLock()  # the writer has a thread of its own
        self._originals: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Self:
        self._originals = {name: getattr(os, name) for name in _CALLS}
        for name in _CALLS:
            setattr(os, name, partial(self._call, name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)

    def _call(self, name: str, where: Any, *rest: Any, **named: Any) -> Any:
        path = self._inside(where, named.get("dir_fd", named.get("src_dir_fd")))
        if path is None:
            return self._originals[name](where, *rest, **named)
        with self._turn:
            point = self._point(name, path, where, *rest)
            distance = len(self.points) - self._at
            self.points.append(point)
            if distance == 0 and self._fault.taken is not None:
                return self._write_in_part(where, rest[0])
            return self._do(point, self._fault.error(point, distance), where, *rest, **named)

    def _inside(self, where: Any, directory: int | None) -> Path | None:
        if isinstance(where, int):
            return self.handles.get(where)
        if directory is not None:
            return self.handles[directory] / where if directory in self.handles else None
        path = Path(os.fsdecode(where)).absolute()
        return path if path.is_relative_to(self.directory) else None

    def _point(self, name: str, path: Path, where: Any, *rest: Any) -> Point:
        point = partial(Point, name, path.relative_to(self.directory), of_directory=path.is_dir())
        if name in ("replace", "rename"):
            target = path.parent / rest[0]  # a name in the same directory, or a path of its own
            return point(target=target.absolute().relative_to(self.directory))
        if name == "open":
            return point(flags=rest[0])
        if name == "write":
            return point(start=os.lseek(where, 0, os.SEEK_CUR), content=bytes(rest[0]))
        return point(start=rest[0]) if name == "truncate" else point()

    def _do(self, point: Point, error: OSError | None, where: Any, *rest: Any, **named: Any) -> Any:
        if error and not self._fault.late and point.call != "close":  # a handle is gone even if closing it fails
            raise error
        result: Any = None if point.call == "fsync" else self._originals[point.call](where, *rest, **named)
        if point.call == "open" and error:
            self._originals["close"](result)
        elif point.call == "open":
            self.handles[result] = self.directory / point.path
        elif point.call == "close":
            del self.handles[where]
        if error:
            raise error
        return result

    def _write_in_part(self, handle: int, content: memoryview) -> int:
        """As a disk may that is nearly full: a part that ends anywhere, even in an unbuffered file."""
        length = int(len(content) * self._fault.taken) | 1 if self._fault.taken else 0
        with _buffered(handle):
            return int(self._originals["write"](handle, content[:length])) if length else 0


@contextmanager
def _buffered(handle: int) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~_DIRECT)
    yield
    fcntl.fcntl(handle, fcntl.F_SETFL, flags)


STEPS = 5
SYNCED = (1, 4)
TWO_STEPS = 1500  # bytes of a chapter: between the sizes of one step and of two, so that steps 1 and 2 fill one


@contextmanager
def small_chapters() -> Iterator[None]:
    """Chapters of two steps; and one thread, for more of them wait for one another longer than they work."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualform.recorder.session.chapter_bytes", lambda state: TWO_STEPS)
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@dataclass
class Told:
    """What a training heard of its recording: the steps said to be safe, and errors."""

    promised: int | None = None  # None: it was never entered
    errors: list[StorageError] = field(default_factory=list)


class Training:
    """Five steps in four chapters, each step with random numbers of its own; another `course` has others."""

    def __init__(self, course: int = 0, promise: Callable[[int], None] = lambda step: None) -> None:
        torch.manual_seed(course)
        self.model = network(nn.ReLU())
        self.optimizer = sgd(self.model)
        self.checkpoints = {0: self._state()}
        self.promise = promise  # called with the steps that are safe
        self._course = course

    def record(self, path: Where, **options: Any) -> Told:
        """Train to the end, or until the disk fails; anything but a StorageError is the caller's."""
        told = Told()
        try:
            with record(self.model, self.optimizer, path, **options) as recorder:
                self._promised(told, recorder.steps)
                try:
                    self._steps(recorder, told)
                except StorageError as error:
                    told.errors.append(error)
                    self._check_stopped(recorder)
            if not told.errors:
                self._promised(told, recorder.steps)
        except StorageError as error:
            told.errors.append(error)
        return told

    def _promised(self, told: Told, step: int) -> None:
        told.promised = step
        self.promise(step)

    def _steps(self, recorder: dualform.Recorder, told: Told) -> None:
        while recorder.steps < STEPS:
            self.step(recorder)
            if recorder.steps in SYNCED:
                self._promised(told, recorder.sync())

    def step(self, recorder: dualform.Recorder) -> None:
        """Every other step has the same examples, so that keys come again."""
        torch.manual_seed(100 * self._course + recorder.steps % 2)
        recorder.tag(id=torch.arange(6) + recorder.steps, task="a" if recorder.steps < 3 else "b")
        step(self.model, self.optimizer)
        self.checkpoints[recorder.steps] = self._state()

    def _check_stopped(self, recorder: dualform.Recorder) -> None:
        steps = recorder.steps
        for attempt in (recorder.sync, recorder.tag, lambda: step(self.model, self.optimizer)):
            with pytest.raises(RecordingError, match="recording stopped at step"):
                attempt()
        assert recorder.steps == steps

    def _state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self, state: Any) -> None:
        model, optimizer = copy.deepcopy(state)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


Shards = list[dict[str, Any]]
_certified: set[str] = set()


def sealed(path: Where) -> Shards:
    """Every tensor of every shard, and what each shard says of itself; raises unless the run is as it should be."""
    run = Run(path)
    assert run.unread is None, run.unread
    words = ("first_step", "last_step", "tags", "ended")
    found = [
        {name: shard[name].tobytes() for name in shard.names("")} | {word: getattr(shard.info, word) for word in words}
        for shard in run.shards
    ]
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    if digest not in _certified:  # the same tensors have the same certificate, which takes longest
        certificate = dualform.load(path).verify()
        assert certificate.ok or not run.steps, str(certificate)
        _certified.add(digest)
    return found
