"""The claim: a recording that is killed at any moment loses nothing that was sealed, and goes on to the same run.

    python -m benchmarks.crash --kills 200

A process trains a small network (an MLP 16-32-32-4 with dropout, batches of 16 from 64 examples, SGD with momentum,
gradients clipped in every third step) and records it. Every 20 steps it calls `recorder.sync()` and saves a
checkpoint; chapters are sealed in the background every few steps, at other ones in each life. It is killed
(SIGKILL) after a time drawn evenly from all that an uninterrupted one takes and a tenth more: while it starts,
restores, cuts the run back, trains, writes, saves or closes. In every third life a worker of its own, as data
loaders have, outlives it.

After each kill the run must open, be certified to its last step, and hold all steps of the checkpoint but none that
were dropped. Then `train`, the same function each time, goes on in the same directory, and may be killed again. When
it gets to its end, the run is compared with the uninterrupted one bit by bit, and the next begins. `kills` counts
those of runs that had begun; `early` ones found nothing on the disk that could be lost. `lost_ms` is what a kill
costs: the steps since the last checkpoint, and restoring and resuming. Whatever falls short ends it: the directory is
kept, the exit code 1.
"""

import argparse
import ctypes
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import mkdtemp
from time import perf_counter

import torch

import dualform
from benchmarks.contents import Bits, contents
from benchmarks.lives import STEPS, Failed, Life, Stage, Training, Watch, live_for
from dualform.errors import RunError
from dualform.store import Run
from dualform.store.schema import shard_name
from dualform.store.summary import ending

_CHAPTER_BYTES = 20_000, 40_000  # another length in each life: shards left over would not fit the new ones
_TIMEOUT = 60.0  # seconds for a life that is not to be killed; it takes about one
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Spread:
    """Mean and maximum of what kills cost."""

    mean: float
    worst: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(fmean(values), max(values)) if values else cls(0.0, 0.0)


@dataclass
class Counts:
    """What the kills hit, and what came after them."""

    kills: int = 0  # of runs that had begun
    opened: int = 0
    certified: int = 0  # to their last step, which is the checkpoint's or a later one
    resumed: int = 0  # a later life recorded again from the checkpoint
    begun_again: int = 0  # of these, from the start: there was no checkpoint yet
    finished: int = 0  # runs
    identical: int = 0  # of these, to the uninterrupted one
    early: int = 0  # kills that found no run yet
    while_resuming: int = 0
    while_writing: int = 0  # a shard's temporary file was left behind
    while_saving: int = 0
    after_closing: int = 0
    beside_worker: int = 0


@dataclass(frozen=True)
class Result:
    """How many kills did no harm, what they hit, and what they cost."""

    asked: int
    counts: Counts
    steps: int
    step_ms: float  # of the quickest uninterrupted run, checkpoints included
    lost_steps: Spread  # since the last checkpoint
    resume_ms: Spread  # restoring it, and `dualform.record`
    lost_ms: Spread
    seconds: float
    seed: int
    failure: str | None
    kept: str | None  # the directory of what failed

    @property
    def ok(self) -> bool:
        n = self.counts
        harmless = n.opened == n.certified == n.resumed == n.kills == self.asked
        return harmless and n.identical == n.finished > 0 and self.failure is None


class Trial:
    """Kills and examines until there are enough kills."""

    def __init__(self, base: Path, kills: int, seed: int) -> None:
        self.base = base
        self.counts = Counts()
        self.step_seconds = _TIMEOUT / STEPS
        self.lost_steps: list[int] = []  # of each kill
        self.resuming: list[float] = []  # of each kill, when it was made good; shorter by those that were not yet
        self._kills, self._seed, self._random, self._lives = kills, seed, Random(seed), 0
        self._workers: list[int] = []

    def run(self) -> None:
        self._whole, other = (self._uninterrupted(self.base / name) for name in ("whole", "again"))
        if self._whole != other:
            raise Failed("two uninterrupted runs differ, so nothing can be told of interrupted ones")
        while self.counts.kills < self._kills:
            directory = self.base / f"{self.counts.finished:04d}"
            directory.mkdir()
            self._train_to_the_end(directory)
            shutil.rmtree(directory)

    def _uninterrupted(self, directory: Path) -> dict[str, Bits]:
        directory.mkdir()
        self._one_life(directory, _TIMEOUT)
        return contents(directory / "run")

    def _train_to_the_end(self, directory: Path) -> None:
        while not self._one_life(directory, self._delay()):
            pass
        self.counts.finished += 1
        _certify(directory / "run", STEPS)
        if contents(directory / "run") != self._whole:
            raise Failed("the finished run is not the uninterrupted one")
        self.counts.identical += 1

    def _delay(self) -> float:
        """Return the seconds until the next kill; after enough kills, the last process is not killed."""
        if self.counts.kills >= self._kills:
            return _TIMEOUT
        return self._random.uniform(0, 1.1 * STEPS * self.step_seconds)

    def _one_life(self, directory: Path, seconds: float) -> bool:
        """Run one process. Returns whether it came to its end; if not, its run has been checked."""
        before = _saved(directory)
        self._lives += 1
        size = self._random.randint(*_CHAPTER_BYTES)
        life = live_for(seconds, directory, size, with_worker=self._lives % 3 == 0)
        if life.watch.stage >= Stage.TRAINING:
            self._note_resumed(life.watch, before)
        if life.ended:
            self._note_speed(life)
        elif seconds >= _TIMEOUT:
            raise Failed(f"training hangs: it has not come to its end within {_TIMEOUT:.0f} s")
        else:
            self._workers += [life.watch.worker] if life.watch.worker else []
            self._examine(directory, life.watch)
        return life.ended

    def _note_speed(self, life: Life) -> None:
        """Return the seconds of the fastest uninterrupted process: on a busy machine kills must not come too late."""
        if life.watch.first == 0:
            self.step_seconds = min(self.step_seconds, life.seconds / STEPS)

    def _note_resumed(self, watch: Watch, before: int) -> None:
        """All kills since the last life that recorded are made good by this one."""
        if watch.first != before:
            raise Failed(f"recording went on from step {watch.first}, the checkpoint is of step {before}")
        waiting = self.counts.kills - self.counts.resumed
        self.resuming += [watch.resuming] * waiting
        self.counts.resumed += waiting
        self.counts.begun_again += waiting if not before else 0

    def _examine(self, directory: Path, watch: Watch) -> None:
        path, saved = directory / "run", _saved(directory)
        if not saved and not (path / shard_name(0)).exists():
            _expect_no_run(path)
            self.counts.early += 1
            return
        self.counts.kills += 1
        self.lost_steps.append(max(watch.steps - saved, 0))
        self._note_what_was_hit(path, watch, saved)
        run = Run(path)
        self.counts.opened += 1
        _check_end(run, watch)
        self.counts.after_closing += run.ended is not None
        _certify(path, saved)
        self.counts.certified += 1

    def _note_what_was_hit(self, path: Path, watch: Watch, saved: int) -> None:
        self.counts.while_resuming += watch.stage == Stage.RESUMING and saved > 0
        self.counts.while_saving += watch.stage == Stage.SAVING
        # Those that an earlier life left are gone once recording has begun.
        self.counts.while_writing += watch.stage >= Stage.TRAINING and any(path.glob("*.tmp"))
        self.counts.beside_worker += watch.worker > 0

    def wait_for_workers(self) -> None:
        for worker in self._workers:
            with suppress(ChildProcessError):  # where orphans are not adopted the system waits for them
                os.waitpid(worker, 0)

    def result(self, seconds: float, failure: str | None) -> Result:
        made_good = zip(self.lost_steps, self.resuming, strict=False)
        return Result(
            asked=self._kills,
            counts=replace(self.counts),
            steps=STEPS,
            step_ms=1e3 * self.step_seconds,
            lost_steps=Spread.of(self.lost_steps),
            resume_ms=Spread.of([1e3 * seconds for seconds in self.resuming]),
            lost_ms=Spread.of([1e3 * (steps * self.step_seconds + resuming) for steps, resuming in made_good]),
            seconds=seconds,
            seed=self._seed,
            failure=failure,
            kept=str(self.base) if failure else None,
        )


def _saved(directory: Path) -> int:
    """Return the step of the checkpoint, 0 if there is none."""
    path = directory / "checkpoint.pt"
    return int(torch.load(path)["step"]) if path.exists() else 0


def _expect_no_run(path: Path) -> None:
    with suppress(RunError):
        dualform.load(path)
        raise Failed(f"{path} opens, though it has no first shard")


def _check_end(run: Run, watch: Watch) -> None:
    if run.ended not in (None, "complete") or (run.ended and run.steps < STEPS):
        raise Failed(f"a run that was killed at step {watch.steps} says of its end: {ending(run)}")
    # One more: a step may be sealed before it is noted. What an earlier life did after the checkpoint must be gone.
    if watch.stage >= Stage.TRAINING and run.steps > watch.steps + 1:
        raise Failed(f"{run.steps} steps are there, but recording went on from {watch.first} to {watch.steps} only")


def _certify(path: Path, saved: int) -> None:
    """Check every chapter, and that none of a checkpoint's is missing."""
    memory = dualform.load(path)
    if memory.steps < saved:
        raise Failed(f"only {memory.steps} steps are there, the checkpoint is of step {saved}")
    certificate = memory.verify()
    certified = certificate.ok or not memory.steps  # of a run without steps there is nothing to certify
    if not certified or certificate.steps_certified != memory.steps:
        raise Failed(f"not certified:\n{certificate}")


def crash(kills: int, seed: int) -> Result:
    """Kill a recording again and again. Sets torch to one thread, which alone can be forked safely."""
    torch.set_num_threads(1)
    Training()  # imports what torch only imports on use: here, and not in each life
    _adopt_orphans()
    began, failure = perf_counter(), None
    trial = Trial(Path(mkdtemp(prefix="dualform-crash-")), kills, seed)
    try:
        trial.run()
    except Exception as error:  # whatever it is, what led to it is kept and told of
        failure = f"{type(error).__name__}: {error}"
    else:
        shutil.rmtree(trial.base)
    finally:
        trial.wait_for_workers()
    return trial.result(perf_counter() - began, failure)


def _adopt_orphans() -> None:
    """Make workers whose parent was killed children of this process, which can wait for them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def report(result: Result) -> str:
    n = result.counts
    lines = [
        f"{n.kills} of {result.asked} kills of runs of {result.steps} steps, and {n.early} before a run began",
        f"opened     {n.opened}",
        f"certified  {n.certified}",
        f"resumed    {n.resumed}, {n.begun_again} of them from the start, for want of a checkpoint",
        f"finished   {n.finished} runs, {n.identical} of them identical to the uninterrupted one",
        f"hit        {n.while_resuming} while resuming, {n.while_writing} while writing a shard, "
        f"{n.while_saving} while saving a checkpoint, {n.after_closing} after closing, "
        f"{n.beside_worker} beside a worker",
        f"lost       {result.lost_ms.mean:.0f} ms a kill, {result.lost_ms.worst:.0f} at worst: "
        f"{result.lost_steps.mean:.1f} steps of {result.step_ms:.1f} ms ({result.lost_steps.worst} at worst) and "
        f"{result.resume_ms.mean:.0f} ms to resume ({result.resume_ms.worst:.0f} at worst)",
        f"took       {result.seconds:.0f} s",
    ]
    return "\n".join(
        [*lines, *([f"FAILED     {result.failure}", f"kept in    {result.kept}"] if result.failure else [])]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    result = crash(options.kills, options.seed)
    print(json.dumps({**asdict(result), "ok": result.ok}, indent=1) if options.json else report(result))
    sys.exit(0 if result.ok else 1)


if __name__ == "__main__":
    main()
