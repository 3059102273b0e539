"""Parts that the trainings of all experiments share: a seeded network, shuffled epochs, one thread, what is kept.

epochs = ShuffledEpochs([(1149, 400)], batch=32, generator=torch.Generator().manual_seed(0))
epochs[100].rows                # of step 100, whichever step was asked for before
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dualform.errors import QueryError

Network = TypeVar("Network", bound=nn.Module)

SLOTS, SNAPSHOTS = "slots", "snapshots"  # what is stored of a training
CACHE = "4 GB"  # of slots that were made again, for the next question


def seeded(network: Callable[[], Network], seed: int) -> Network:
    """Return a network initialised with a seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):  # torch's initialisers use the global generator only
        torch.manual_seed(seed)
        return network()


@dataclass(frozen=True)
class ShuffledBatch:
    """The examples of a step.

    Attributes:
        phase: number of the phase of training.
        rows: numbers of the examples, (batch,).
        drawn: what else was drawn for the step.
    """

    phase: int
    rows: Tensor
    drawn: Any


class ShuffledEpochs:
    """Batches by the number of the step; every epoch is in a new order, an incomplete last batch is left out.

    The orders of all epochs come from one generator, one after the other, so they are kept: whichever step is asked
    for first, its batch is that of a loop from the beginning.

    Args:
        phases: number of examples, and of steps, of each phase of training; a phase begins with a new epoch.
        batch: size of a batch.
        generator: of random numbers.
        draw: called with each step and the generator, after the order of its epoch was drawn.
    """

    def __init__(
        self,
        phases: Sequence[tuple[int, int]],
        batch: int,
        generator: torch.Generator,
        draw: Callable[[int, torch.Generator], Any] = lambda step, generator: None,
    ) -> None:
        for examples, _ in phases:
            if examples < batch:
                raise QueryError(f"a batch of {batch} cannot be drawn from {examples} examples")
        self._phases, self._batch, self._draw = phases, batch, draw
        self._steps = sum(steps for _, steps in phases)
        self._batches: list[ShuffledBatch] = []
        self._coming = self._drawn(generator)
        self._lock = Lock()

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> ShuffledBatch:
        if not 0 <= step < self._steps:
            raise QueryError(f"the training has {self._steps:,} steps, and there is no step {step:,}")
        with self._lock:
            self._batches += islice(self._coming, max(0, step + 1 - len(self._batches)))
            return self._batches[step]

    def _drawn(self, generator: torch.Generator) -> Iterator[ShuffledBatch]:
        begun = 0
        for phase, (examples, steps) in enumerate(self._phases):
            per_epoch = examples // self._batch
            for step in range(steps):
                if step % per_epoch == 0:
                    order = torch.randperm(examples, generator=generator)
                first = step % per_epoch * self._batch
                drawn = self._draw(begun + step, generator)
                yield ShuffledBatch(phase, order[first : first + self._batch], drawn)
            begun += steps


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine, threads would wait for minutes for each other's small products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
