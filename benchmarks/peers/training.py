"""The trainings: what each tool asks of them, as a ratio to a plain one.

    python -m benchmarks.peers.training DIRECTORY

Three equal networks are trained on the same batches in one process and in turns: one plain, one with a checkpoint
after every turn (for TracIn), one recorded by dualform, each turn of it ended by `recorder.sync()`. A ratio is
the median over all turns of the time of a turn over that of the plain one before it: a busy
machine is busy for all. The other tools ask nothing.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import dualform
from benchmarks.peers.meters import forget_peak, peak, resident, timed
from benchmarks.peers.task import CHECKPOINTS, COSTS, RUN, Task
from benchmarks.recording import Data, Loop

Batches = Sequence[Tensor]


@dataclass(frozen=True)
class Trainings:
    """One network each, plain, with checkpoints, and recorded, to be trained turn by turn."""

    data: Data
    checkpoints: Path
    recorder: dualform.Recorder
    recorded: Loop
    plain: Loop = field(default_factory=Loop.fresh)
    saved: Loop = field(default_factory=Loop.fresh)

    def turn(self, number: int, batches: Batches) -> dict[str, float]:
        """Train each network for one turn. Returns their seconds."""
        return {
            "plain": timed(self.plain.train, self.data, batches)[1],
            "checkpointed": timed(self._with_checkpoint, number, batches)[1],
            "recorded": timed(self._with_recorder, batches)[1],
        }

    def _with_checkpoint(self, number: int, batches: Batches) -> None:
        self.saved.train(self.data, batches)
        torch.save(self.saved.model.state_dict(), self.checkpoints / f"{number:03}.pt")

    def _with_recorder(self, batches: Batches) -> None:
        self.recorded.train(self.data, batches, self.recorder)
        self.recorder.sync()

    def check(self) -> None:
        """Raise unless all weights are equal: otherwise the peers would be asked about different models."""
        for other in (self.saved, self.recorded):
            for ours, theirs in zip(self.plain.model.parameters(), other.model.parameters(), strict=True):
                torch.testing.assert_close(theirs, ours)


def train(task: Task) -> dict[str, Any]:
    """Train, write checkpoints and the run, and return what they cost."""
    data, recorded = Data(task.images, task.labels, "task"), Loop.fresh()
    batches, length = list(data.batches(task.settings.steps)), task.settings.turn
    checkpoints = task.directory / CHECKPOINTS
    checkpoints.mkdir()
    Loop.fresh().train(data, batches[:length])  # to warm up: what a plain training takes is no part of the memory
    forget_peak()
    before = resident()
    with dualform.record(recorded.model, recorded.optimizer, task.directory / RUN) as recorder:
        trainings = Trainings(data, checkpoints, recorder, recorded)
        turns = [trainings.turn(i, batches[i * length :][:length]) for i in range(len(batches) // length)]
    trainings.check()
    return {"memory_mb": peak() - before, **{kind: _cost(kind, turns) for kind in turns[0]}}


def _cost(kind: str, turns: list[dict[str, float]]) -> dict[str, Any]:
    ratios = [turn[kind] / turn["plain"] for turn in turns]
    return {"ratio": median(ratios), "ratios": sorted(ratios), "seconds": sum(turn[kind] for turn in turns)}


def main() -> None:
    task = Task.read(Path(sys.argv[1]))
    (task.directory / COSTS).write_text(json.dumps(train(task)))


if __name__ == "__main__":
    main()
