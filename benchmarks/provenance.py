"""The claim: to prove whose rows are costs a few steps, once, and next to nothing in every other step.

    python -m benchmarks.provenance

An MLP (784-800-800-10, batches of 128) and a small Transformer (2 layers of width 128, batches of 32 sequences of 64
tokens) are trained with a tag by example: plain, recorded with provenance, and recorded without, in turns of a few
steps. `experiment` is how much longer a step takes in which a batch of a new size comes, with provenance, in plain
steps. `per_step` is the time of a step of known size with provenance over that of one without: the median over all
turns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import dualform
from benchmarks.command import run
from dualform.store import InMemory

_TURN = 10  # steps


class Transformer(nn.Module):
    """Tokens and their positions, encoded."""

    def __init__(self, vocabulary: int = 1000, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))))
        return out


def _mlp() -> nn.Module:
    linear = [nn.Linear(a, b) for a, b in pairwise((784, 800, 800, 10))]
    return nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2])


@dataclass(frozen=True)
class Subject:
    """A network, what it is fed with, and the layers that can be recorded without provenance, too."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batch: int
    layers: Sequence[str]


SUBJECTS = {
    "mlp": Subject(_mlp, lambda size: torch.randn(size, 784), 128, ["*"]),
    "transformer": Subject(
        Transformer, lambda size: torch.randint(1000, (size, 64)), 32, ["tokens", "layers.*.linear?", "head"]
    ),
}


class Loop:
    """A network in training, recorded or not."""

    def __init__(self, subject: Subject, provenance: bool | None) -> None:
        torch.manual_seed(0)
        self._subject, self._model = subject, subject.make()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4)
        self.recorder: dualform.Recorder | None = None
        if provenance is not None:
            self.recorder = dualform.record(
                self._model, self._optimizer, InMemory(), layers=subject.layers, provenance=provenance
            ).start()

    def step(self, size: int) -> float:
        """Return the seconds of one step."""
        inputs = self._subject.inputs(size)
        began = perf_counter()
        if self.recorder is not None:
            self.recorder.tag(id=torch.arange(size))
        loss = self._model(inputs).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return perf_counter() - began

    def turn(self) -> float:
        return sum(self.step(self._subject.batch) for _ in range(_TURN))


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    return {name: compare(subject, 5 if quick else 20) for name, subject in SUBJECTS.items()}


def compare(subject: Subject, turns: int) -> dict[str, float]:
    """Measure turns of the three loops; the first ones warm up, and are not counted."""
    plain, proven, unproven = (Loop(subject, provenance) for provenance in (None, True, False))
    for loop in (plain, proven, unproven):
        loop.turn()
        loop.turn()
    seconds = [[loop.turn() for loop in (plain, proven, unproven)] for _ in range(turns)]
    sizes = [subject.batch - 1, subject.batch - 2]  # a fourth size would need no experiment
    new = [proven.step(size) - unproven.step(size) for size in sizes]
    for loop in (proven, unproven):
        assert loop.recorder is not None
        loop.recorder.stop()
    plain_step = median(turn[0] for turn in seconds) / _TURN
    return {
        "plain_ms": 1e3 * plain_step,
        "experiment": median(new) / plain_step,
        "per_step": median(with_it / without for _, with_it, without in seconds),
        "record_overhead": median(with_it / alone for alone, with_it, _ in seconds),
    }


def report(results: dict[str, Any]) -> str:
    return "\n".join(
        f"{name}: {found['experiment']:.1f} plain steps of {found['plain_ms']:.1f} ms for a batch of a new size; "
        f"{found['per_step']:.3f} times as long as without provenance in every other step"
        for name, found in results.items()
    )


if __name__ == "__main__":
    run("provenance", __doc__, measure, report)
