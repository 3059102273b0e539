"""What `benchmarks.chaos` does to recordings, one function a kind: it raises Failed where a promise does not hold."""

import errno
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import dualform
from benchmarks.chaos_recording import (
    CHAPTER_BYTES,
    EVERY,
    FORK,
    TIMEOUT,
    Place,
    another_run,
    check_held,
    check_same,
    digests,
    in_child,
    recorded,
)
from benchmarks.contents import contents
from benchmarks.lives import STEPS, Failed, Training, live_for
from dualform.errors import DualformError
from dualform.store import Run
from dualform.store.schema import shard_name


def killed(place: Place) -> None:
    """Kill it at any moment, from its start to its end; then it goes on from its checkpoint to the same run."""
    seconds = place.random.uniform(0, 1.2)
    while not live_for(seconds, place.directory, place.random.randint(*CHAPTER_BYTES), with_worker=False).ended:
        in_child(_check_killed, place, place.directory / "checkpoint.pt")
        seconds = place.random.choice([seconds, TIMEOUT])  # once more, or to the end
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
            other.write_text(json.dumps(another_run(place.run)))

    told = place.record(place.run, before_step=before_step)
    check_same(place.run, json.loads(other.read_text()), "the run that was begun at the old path")
    in_child(check_held, moved, place.whole, told.promised)


def changed_directory(place: Place) -> None:
    """Change the current directory while it is recorded to a relative path, which is another run's there."""
    at, ours, theirs = place.some_step(), place.directory / "ours", place.directory / "theirs"
    ours.mkdir()
    theirs.mkdir()
    in_child(another_run, theirs / "run")
    before = digests(theirs / "run")
    told = place.record(
        Path("run"), prepare=lambda: os.chdir(ours), before_step=lambda step: os.chdir(theirs) if step == at else None
    )
    check_same(theirs / "run", before, "the run of the same name in another directory")
    in_child(check_held, ours / "run", place.whole, told.promised)
    if told.promised < STEPS:
        raise Failed(f"recording stopped: {told.error}")


def few_descriptors(place: Place) -> None:
    """Allow 64 open files to a run of more shards than that, while it is recorded, opened, verified and resumed."""
    checkpoint = place.directory / "checkpoint.pt"
    told = recorded(
        place.directory / "told", place.run, chapter_bytes=1, every=1, prepare=_allow_few, checkpoint=checkpoint
    )
    if told.promised < STEPS:
        raise Failed(f"recording stopped: {told.error}")
    in_child(_check_with_few, place)
    resumed = recorded(
        place.directory / "told", place.run, chapter_bytes=1, every=1, prepare=_allow_few, resume_from=checkpoint
    )
    if resumed.promised < STEPS:
        raise Failed(f"resuming stopped: {resumed.error}")
    in_child(_check_with_few, place)
    if contents(place.run) != place.whole:
        raise Failed("the run that was resumed is not the uninterrupted one")


def _allow_few() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def _check_with_few(place: Place) -> None:
    shards = len(list(place.run.glob("shard-*")))
    if shards <= STEPS:
        raise Failed(f"only {shards} shards: some were dropped, though they were sealed")
    _allow_few()
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
    resume = place.random.choice([None, EVERY])

    def before_step(step: int) -> None:
        if step == at:
            started.touch()
            _wait_for(tried)

    second = FORK.Process(target=_second_writer, args=(place.run, started, tried, resume))
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
    end = monotonic() + TIMEOUT / 2
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
