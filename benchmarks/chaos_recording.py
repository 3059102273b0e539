"""A recording in a process of its own, what it was promised, and whether that holds: for `benchmarks.chaos`.

    told = place.record(place.run, before_step=lambda step: ...)
    in_child(check_held, place.run, place.whole, told.promised)

A recording tells in a file which steps `sync` has promised, and which error it got. Afterwards all promised steps must
open, be certified, and hold what an uninterrupted recording holds.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

import dualform
from benchmarks.contents import Bits, contents
from benchmarks.lives import STEPS, Failed, Training
from dualform.errors import StorageError
from dualform.store import Run
from dualform.store.schema import shard_name

EVERY = 10  # steps, from one promise to the next
TIMEOUT = 60.0  # seconds; a recording takes about one
CHAPTER_BYTES = 20_000, 40_000
FORK = get_context("fork")


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
        return self.random.randint(EVERY, STEPS - 1)

    def record(self, path: Path, **options: Any) -> "Told":
        """Record in a process of its own, and return what it was told."""
        return recorded(self.directory / "told", path, chapter_bytes=self.random.randint(*CHAPTER_BYTES), **options)


@dataclass(frozen=True)
class Told:
    """What a training heard of its recording."""

    promised: int  # steps
    error: str | None


def in_child(work: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """Do some work in a process of its own; raises Failed if that fails, or hangs."""
    receiver, sender = FORK.Pipe(duplex=False)

    def child() -> None:
        try:
            work(*arguments, **named)
            sender.send(None)
        except BaseException as error:  # whatever it is, it is told of
            sender.send(f"{type(error).__name__}: {error}")

    process = FORK.Process(target=child)
    process.start()
    sender.close()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
        raise Failed(f"hangs for {TIMEOUT:.0f} seconds")
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
    every: int = EVERY,
    checkpoint: Path | None = None,
    resume_from: Path | None = None,
    prepare: Callable[[], None] = lambda: None,
    before_step: Callable[[int], None] = lambda step: None,
) -> None:
    training = Training()
    with told.open("a", buffering=1) as file, patch("dualform.recorder.session.chapter_bytes", lambda _: chapter_bytes):
        prepare()
        done = training.restore(resume_from) if resume_from else None
        try:
            with dualform.record(training.model, training.optimizer, path, resume=done) as recorder:
                while recorder.steps < STEPS:
                    before_step(recorder.steps)
                    training.step(recorder)
                    if recorder.steps % every == 0:
                        print(json.dumps({"promised": recorder.sync()}), file=file)
                    if checkpoint and recorder.steps == STEPS // 2:
                        training.save(checkpoint, recorder.steps)
            print(json.dumps({"promised": recorder.steps}), file=file)
        except StorageError as error:
            print(json.dumps({"error": str(error)}), file=file)


def uninterrupted(directory: Path) -> dict[str, Bits]:
    """Return what an uninterrupted recording holds."""
    directory.mkdir()
    recorded(directory / "told", directory / "run", chapter_bytes=CHAPTER_BYTES[0])
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
    exact = all(layer.ok(certificate.tolerance) for layer in certificate.layers.values())
    if memory.steps and (not exact or certificate.steps_certified < promised):
        raise Failed(f"not certified: {certificate}")
    check_prefix(path, whole)


def check_prefix(path: Path, whole: dict[str, Bits]) -> None:
    """Raise unless the steps of a run are the first ones of the uninterrupted run."""
    steps = Run(path).steps
    if not steps:
        return
    found = contents(path, damaged=True)
    for name, bits in found.items():
        if not name.startswith(("state/", "end")):
            ours, expected = _array(bits), _array(whole[name])
            if not np.array_equal(ours, expected[: len(expected) // STEPS * steps]):
                raise Failed(f"{name} is not what it was in training")


def _array(bits: Bits) -> NDArray[Any]:
    dtype, shape, content = bits
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def check_same(path: Path, before: dict[str, str], what: str) -> None:
    if (now := digests(path)) != before:
        changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
        raise Failed(f"{what} was harmed: {', '.join(changed)}")


def another_run(path: Path) -> dict[str, str]:
    """Record somebody else's run, and return what its files hold."""
    with torch.random.fork_rng(devices=[]):  # the first training has random numbers of its own
        training = Training()
        with dualform.record(training.model, training.optimizer, path) as recorder:
            for _ in range(3):
                training.step(recorder)
    return digests(path)
