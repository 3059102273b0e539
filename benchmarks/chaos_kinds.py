"""What `benchmarks.chaos` does to recordings, one function a kind: it raises Failed where a promise does not hold.

A recording tells in a file which steps `sync` has promised, and which error it got. Afterwards all promised steps must
open, be certified, and hold what an uninterrupted recording holds.
"""

import errno
import hashlib
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import dualform
from benchmarks.contents import Bits, contents
from benchmarks.lives import STEPS, Failed, Training, live_for
from dualform.errors import DualformError, StorageError
from dualform.store import Run
from dualform.store.schema import shard_name

_EVERY = 10  # steps, from one promise to the next
_TIMEOUT = 60.0  # seconds; a recording takes about one
_CHAPTER_BYTES = 20_000, 40_000
_FORK = get_context("fork")


@dataclass(frozen=True)
class Place:
    """Where an event happens, what an uninterrupted recording holds, and what chance is drawn from."""

    directory: Path
    whole: dict[str, Bits]
    random: Random

    @property
    def run(self) -> Path:
        return self.directory / "run"

    def some_step(self) -> int:
        """Draw a step after the first promise."""
        return self.random.randint(_EVERY, STEPS - 1)

    def record(self, path: Path, **options: Any) -> "Told":
        """Record in a process of its own, and return what it was told."""
        return recorded(self.directory / "told", path, chapter_bytes=self.random.randint(*_CHAPTER_BYTES), **options)


@dataclass(frozen=True)
class Told:
    """What a training heard of its recording."""

    promised: int  # steps
    error: str | None


def in_child(work: Callable[..., None], *arguments: Any, **named: Any) -> None:
    """Do some work in a process of its own; raises Failed if that fails, or hangs."""
    receiver, sender = _FORK.Pipe(duplex=False)

    def child() -> None:
        try:
            work(*arguments, **named)
            sender.send(None)
        except BaseException as error:  # whatever it is, it is told of
            sender.send(f"{type(error).__name__}: {error}")

    process = _FORK.Process(target=child)
    process.start()
    sender.close()
    process.join(_TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
        raise Failed(f"hangs for {_TIMEOUT:.0f} seconds")
    try:
        failure = receiver.recv()
    except EOFError:
        failure = f"ended with exit code {process.exitcode}"
    finally:
        receiver.close()
    if failure:
        raise Failed(failure)


def recorded(told: Path, path: Path, **options: Any) -> Told:
    told.unlink(missing_ok=True)
    in_child(_record, told, path, **options)
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    promised = [line["promised"] for line in lines if "promised" in line]
    return Told(promised[-1] if promised else 0, next((line["error"] for line in lines if "error" in line), None))


def _record(
    told: Path,
    path: Path,
    chapter_bytes: int,
    prepare: Callable[[], None] = lambda: None,
    before_step: Callable[[int], None] = lambda step: None,
) -> None:
    training = Training()
    with told.open("a", buffering=1) as file, patch("dualform.recorder.session.chapter_bytes", lambda _: chapter_bytes):
        prepare()
        try:
            with dualform.record(training.model, training.optimizer, path) as recorder:
                while recorder.steps < STEPS:
                    before_step(recorder.steps)
                    training.step(recorder)
                    if recorder.steps % _EVERY == 0:
                        print(json.dumps({"promised": recorder.sync()}), file=file)
            print(json.dumps({"promised": recorder.steps}), file=file)
        except StorageError as error:
            print(json.dumps({"error": str(error)}), file=file)


def uninterrupted(directory: Path) -> dict[str, Bits]:
    """Return what an uninterrupted recording holds."""
    directory.mkdir()
    recorded(directory / "told", directory / "run", chapter_bytes=_CHAPTER_BYTES[0])
    return contents(directory / "run")


def check_held(path: Path, whole: dict[str, Bits], promised: int) -> None:
    """Raise unless a run has all promised steps, is certified, and each of its steps is as it was in training."""
    if not promised and not (path / shard_name(0)).exists():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory = dualform.load(path)
    if memory.steps < promised:
        raise Failed(f"{promised} steps were promised, {memory.steps} are there")
    certificate = memory.verify()
    if memory.steps and (not certificate.ok or certificate.steps_certified < promised):
        raise Failed(f"not certified: {certificate}")
    check_prefix(path, whole)


def check_prefix(path: Path, whole: dict[str, Bits]) -> None:
    """Raise unless the steps of a run are the first ones of the uninterrupted run."""
    steps = Run(path).steps
    if not steps:
        return
    with patch.object(Run, "unread", None, create=True):
        found = contents(path)
    for name, bits in found.items():
        if not name.startswith(("state/", "end")):
            ours, expected = _array(bits), _array(whole[name])
            if not np.array_equal(ours, expected[: len(expected) // STEPS * steps]):
                raise Failed(f"{name} is not what it was in training")


def _array(bits: Bits) -> NDArray[Any]:
    dtype, shape, content = bits
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def _digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def _check_same(path: Path, before: dict[str, str], what: str) -> None:
    if (now := _digests(path)) != before:
        changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
        raise Failed(f"{what} was harmed: {', '.join(changed)}")


def _another_run(path: Path) -> dict[str, str]:
    """Record somebody else's run, and return what its files hold."""
    training = Training()
    with dualform.record(training.model, training.optimizer, path) as recorder:
        for _ in range(3):
            training.step(recorder)
    return _digests(path)


# Kinds of chaos


def killed(place: Place) -> None:
    """Kill it at any moment, from its start to its end; then it goes on from its checkpoint to the same run."""
    while not live_for(
        place.random.uniform(0, 1.2), place.directory, place.random.randint(*_CHAPTER_BYTES), False
    ).ended:
        saved = place.directory / "checkpoint.pt"
        in_child(_check_killed, place, saved)
        if place.random.random() < 0.5:
            live_for(_TIMEOUT, place.directory, place.random.randint(*_CHAPTER_BYTES), False)
            break
    in_child(check_held, place.run, place.whole, STEPS)
    if contents(place.run) != place.whole:
        raise Failed("the run that was resumed is not the uninterrupted one")


def _check_killed(place: Place, checkpoint: Path) -> None:
    promised = Training().restore(checkpoint) if checkpoint.exists() else 0
    check_held(place.run, place.whole, promised)


def full_disk(place: Place) -> None:
    """Let a disk take no more bytes: files end at a size, or every write fails from one on."""
    limit, writes = place.random.randint(2_000, 60_000), place.random.randint(1, 60)
    by_size = place.random.random() < 0.5

    def prepare() -> None:
        if by_size:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        else:
            patch("os.write", _full_after(writes)).start()

    told = place.record(place.run, prepare=prepare)
    in_child(check_held, place.run, place.whole, told.promised)
    if told.error is None and told.promised < STEPS:
        raise Failed("training ended without an error, and without all of its steps")


def _full_after(writes: int) -> Callable[..., int]:
    write, taken = os.write, iter(range(writes))

    def limited(*arguments: Any) -> int:
        if next(taken, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*arguments)

    return limited


def renamed(place: Place) -> None:
    """Rename its directory while it is recorded, and begin another run at the old path."""
    at, moved, other = place.some_step(), place.directory / "moved", place.directory / "digests"

    def before_step(step: int) -> None:
        if step == at and not moved.exists():
            place.run.rename(moved)
            other.write_text(json.dumps(_another_run(place.run)))

    told = place.record(place.run, before_step=before_step)
    _check_same(place.run, json.loads(other.read_text()), "the run that was begun at the old path")
    in_child(check_held, moved, place.whole, told.promised)


def changed_directory(place: Place) -> None:
    """Change the current directory while it is recorded to a relative path, which is another run's there."""
    at, ours, theirs = place.some_step(), place.directory / "ours", place.directory / "theirs"
    ours.mkdir()
    theirs.mkdir()
    in_child(_another_run, theirs / "run")
    before = _digests(theirs / "run")
    told = place.record(
        Path("run"), prepare=lambda: os.chdir(ours), before_step=lambda step: os.chdir(theirs) if step == at else None
    )
    _check_same(theirs / "run", before, "the run of the same name in another directory")
    in_child(check_held, ours / "run", place.whole, told.promised)
    if told.promised < STEPS:
        raise Failed(f"recording stopped: {told.error}")


def few_descriptors(place: Place) -> None:
    """Allow 64 open files to a run of more shards than that, while it is recorded, opened, verified and resumed."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        patch("dualform.recorder.evidence._MAX_STEPS", 1).start()

    told = recorded(place.directory / "told", place.run, chapter_bytes=1, prepare=prepare)
    if told.promised < STEPS:
        raise Failed(f"recording stopped: {told.error}")
    before = _digests(place.run)
    in_child(_resume_with_few, place)
    for name in before:
        if not (place.run / name).exists():
            raise Failed(f"{name} was dropped, though it was sealed")


def _resume_with_few(place: Place) -> None:
    shards = len(list(place.run.glob("shard-*")))
    if shards < 70:
        raise Failed(f"only {shards} shards: nothing to be told from them")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    check_held(place.run, place.whole, STEPS)
    training = Training()
    training.model.load_state_dict(dualform.load(place.run).model(training.model).state_dict())
    try:  # its momenta are not restored, so that it is refused, and nothing may be dropped
        dualform.record(training.model, training.optimizer, place.run, resume=STEPS).start().stop()
    except DualformError:
        check_held(place.run, place.whole, STEPS)


def damaged(place: Place) -> None:
    """Flip a byte of a file, cut it off, or put another in its place: right answers, or an error of dualform's own."""
    place.record(place.run)
    file = place.random.choice([file for file in sorted(place.run.iterdir()) if file.stat().st_size])
    content = bytearray(file.read_bytes())
    at, how = place.random.randrange(len(content)), place.random.choice(["flip", "cut off", "exchange"])
    if how == "flip":
        content[at] ^= 1 << place.random.randrange(8)
    elif how == "cut off":
        del content[at:]
    else:
        content = bytearray(place.random.choice(sorted(place.run.iterdir())).read_bytes())
    file.write_bytes(content)
    try:
        in_child(_check_damaged, place)
    except Failed as failure:
        raise Failed(f"{how} of {file.name} at byte {at}: {failure}") from None


def _check_damaged(place: Place) -> None:
    try:
        check_held(place.run, place.whole, 0)
    except DualformError:
        return


def two_writers(place: Place) -> None:
    """Let a second process record to the same place, to replace it or to resume it: it is refused."""
    at, started, tried = place.some_step(), place.directory / "started", place.directory / "tried"
    resume = place.random.choice([None, _EVERY])

    def before_step(step: int) -> None:
        if step == at:
            started.touch()
            _wait_for(tried)

    second = _FORK.Process(target=_second_writer, args=(place.run, started, tried, resume))
    second.start()
    told = place.record(place.run, before_step=before_step)
    second.join()
    if tried.read_text() != "refused":
        raise Failed(f"a second writer was not refused, but {tried.read_text()}")
    if told.promised < STEPS:
        raise Failed(f"the first writer was stopped: {told.error}")
    in_child(check_held, place.run, place.whole, STEPS)


def _second_writer(path: Path, started: Path, tried: Path, resume: int | None) -> None:
    _wait_for(started)
    training = Training()
    try:
        dualform.record(training.model, training.optimizer, path, overwrite=True, resume=resume).start().stop()
        outcome = "let in"
    except DualformError as error:
        outcome = "refused" if "another" in str(error) or "writ" in str(error) else f"told: {error}"
    temporary = tried.with_suffix(".tmp")
    temporary.write_text(outcome)
    temporary.replace(tried)


def _wait_for(file: Path) -> None:
    end = monotonic() + _TIMEOUT / 2
    while not file.exists() and monotonic() < end:
        sleep(0.005)


def removed_shard(place: Place) -> None:
    """Remove a sealed shard while it is recorded: the next seal tells, and the steps before it are there."""
    at, removed = place.some_step(), place.directory / "removed"

    def before_step(step: int) -> None:
        if step == at:
            shard = place.random.choice(sorted(place.run.glob("shard-*")))
            steps = Run(place.run).shards[int(shard.stem[6:])].info.first_step
            removed.write_text(json.dumps([shard.name, steps]))
            shard.unlink()

    told = place.record(place.run, before_step=before_step)
    name, before = json.loads(removed.read_text())
    if told.error is None or told.promised > at:
        raise Failed(f"{name} was removed before step {at}, and {told.promised} steps were promised all the same")
    in_child(check_held, place.run, place.whole, before if name != shard_name(0) else 0)


KINDS: dict[str, Callable[[Place], None]] = {
    "kill": killed,
    "full disk": full_disk,
    "renamed": renamed,
    "changed directory": changed_directory,
    "few descriptors": few_descriptors,
    "damaged": damaged,
    "two writers": two_writers,
    "removed shard": removed_shard,
}
