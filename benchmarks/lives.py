"""The training that `benchmarks.crash` kills: a loop as one would write it, in a process of its own.

    life = live_for(0.3, directory, chapter_bytes=30_000, with_worker=False)

Afterwards `life.ended` says whether it came to its end, and `life.watch` how far it came if not.
"""

import ctypes
import os
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from signal import SIGKILL
from time import perf_counter, sleep
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

import dualform

STEPS = 110  # the last ones come after the last checkpoint, so that a closed run is cut back, too
_EVERY = 20
_EXAMPLES, _BATCH = 64, 16
_WORKER = 2.0  # seconds that a worker lives: longer than what it works for
_FORK = get_context("fork")  # torch is imported once, not once a life


class Failed(Exception):
    """A claim does not hold."""


class Training:
    """A network, its optimiser and its examples, always with the same initial state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.inputs, self.labels = torch.randn(_EXAMPLES, 16), torch.randint(4, (_EXAMPLES,))

    def step(self, recorder: dualform.Recorder) -> None:
        ids = torch.randperm(_EXAMPLES)[:_BATCH]
        recorder.tag(id=ids, label=self.labels[ids], half="first" if recorder.steps < STEPS // 2 else "second")
        loss = F.cross_entropy(self.model(self.inputs[ids]), self.labels[ids])
        self.optimizer.zero_grad()
        loss.backward()
        if recorder.steps % 3 == 2:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()

    def save(self, path: Path, step: int) -> None:
        """Write a checkpoint atomically."""
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**state, "random": torch.get_rng_state(), "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def restore(self, path: Path) -> int:
        """Load a checkpoint. Returns its step."""
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        return int(saved["step"])


class Stage(IntEnum):
    STARTING = 0
    RESUMING = 1
    TRAINING = 2
    SAVING = 3
    CLOSING = 4


class Watch(ctypes.Structure):
    """How far a process has come, in memory that outlives it."""

    _fields_ = (
        ("stage", ctypes.c_int), ("first", ctypes.c_int), ("steps", ctypes.c_int), ("worker", ctypes.c_int),
        ("resuming", ctypes.c_double),
    )  # fmt: skip
    stage: int
    first: int  # the step it went on from
    steps: int
    worker: int  # its process id; 0: none
    resuming: float  # seconds from looking for a checkpoint to recording

    def began(self, step: int, seconds: float) -> None:
        self.first, self.steps, self.resuming = step, step, seconds
        self.stage = Stage.TRAINING


def train(directory: Path, watch: Watch, with_worker: bool) -> None:
    """Begin, or resume from the last checkpoint if there is one."""
    training, checkpoint = Training(), directory / "checkpoint.pt"
    watch.stage, looked = Stage.RESUMING, perf_counter()
    done = training.restore(checkpoint) if checkpoint.exists() else None
    with dualform.record(
        training.model, training.optimizer, directory / "run", resume=done, overwrite=done is None
    ) as recorder:
        watch.began(recorder.steps, perf_counter() - looked)
        if with_worker:
            watch.worker = _start_worker()
        while recorder.steps < STEPS:
            training.step(recorder)
            watch.steps = recorder.steps
            if recorder.steps % _EVERY == 0:
                watch.stage = Stage.SAVING
                recorder.sync()  # first: a checkpoint must never be ahead of the run
                training.save(checkpoint, recorder.steps)
                watch.stage = Stage.TRAINING
        watch.stage = Stage.CLOSING


def _start_worker() -> int:
    worker = _FORK.Process(target=sleep, args=(_WORKER,), daemon=True)
    worker.start()
    return worker.pid or 0


def _live(directory: Path, watch: Watch, chapter_bytes: int, with_worker: bool) -> None:
    with patch("dualform.recorder.session.chapter_bytes", lambda state: chapter_bytes):
        train(directory, watch, with_worker)


@dataclass(frozen=True)
class Life:
    """What is known about a process that trained."""

    watch: Watch
    ended: bool  # by itself, and well; if not, it was killed
    seconds: float


def live_for(seconds: float, directory: Path, chapter_bytes: int, with_worker: bool) -> Life:
    """Train in a process of its own, and kill it if it takes longer than that."""
    watch, began = RawValue(Watch), perf_counter()
    process = _FORK.Process(target=_live, args=(directory, watch, chapter_bytes, with_worker))
    process.start()
    try:
        process.join(seconds)
    finally:
        process.kill()
        process.join()
    if process.exitcode not in (0, -SIGKILL):
        raise Failed(f"training stopped by itself at step {watch.steps}: exit code {process.exitcode}")
    return Life(watch, process.exitcode == 0, perf_counter() - began)
