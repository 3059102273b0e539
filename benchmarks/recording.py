"""The claim: recording the paper's MNIST run costs little, and no more memory the longer it runs.

    python -m benchmarks.recording --data data

Two equal networks (an MLP 784-800-800-10, batches of 128, SGD with momentum, clipped gradients) are trained
on the same batches in one process, one plain, one recorded, in turns of 250 steps. A recorded turn ends when
nothing is left to be written in the background, so that nothing of it is paid by the plain turn that follows.
What the run's last steps take to be written is measured, too, when the recording ends, and shared out to all steps.
`record_overhead` is that share and the median, over all turns, of the time of a recorded turn over that of the
plain one before it: a busy machine is busy for both. `bytes_ratio` compares the run's bytes, snapshots among them,
with its keys and values as raw float32. `rss_mb` is how far resident memory had grown at most by a quarter, by half
and by the end of the run.

Pixels come from DIR/mnist (the IDX files; --data or DUALFORM_DATA), else they are random.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from benchmarks.command import run
from benchmarks.turns import take_turns
from dualform.datasets import image_catalogue
from dualform.datasets.images import standardised
from dualform.experiments.loops import ShuffledEpochs

_WIDTHS = (784, 800, 800, 10)
_BATCH = 128
_TURN = 250  # steps


@dataclass(frozen=True)
class Data:
    """Standardised pixels (examples, 784), their labels, and where they come from."""

    images: Tensor
    labels: Tensor
    source: str

    def batches(self, steps: int) -> Iterator[Tensor]:
        """Yield the examples of each step."""
        epochs = ShuffledEpochs([(len(self.images), steps)], _BATCH, torch.Generator().manual_seed(0))
        return (epochs[step].rows for step in range(steps))


def mnist(directory: Path) -> Data:
    """Load the training set."""
    train = image_catalogue.load("mnist", directory).train
    return Data(standardised(train.raw, by=train.raw), train.labels, "mnist")


def noise(examples: int = 60_000) -> Data:
    """Make random data of the same shape."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(examples, 784, generator=generator)
    return Data(images, torch.randint(10, (examples,), generator=generator), "random")


def network() -> nn.Sequential:
    """Make the paper's network, always with the same initial weights."""
    torch.manual_seed(0)
    first, second, last = (nn.Linear(a, b) for a, b in pairwise(_WIDTHS))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


@dataclass(frozen=True)
class Loop:
    """A network and its optimiser, to be trained turn by turn."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    clip: float | None = None

    @classmethod
    def fresh(cls) -> "Loop":
        model = network()
        return cls(model, torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9), clip=1.0)

    def train(self, data: Data, batches: Sequence[Tensor], recorder: dualform.Recorder | None = None) -> list[float]:
        """Return the seconds of each step."""
        times = []
        for ids in batches:
            start = perf_counter()
            images, labels = data.images[ids], data.labels[ids]
            if recorder is not None:
                recorder.tag(id=ids, label=labels, task="mnist")
            loss = F.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            times.append(perf_counter() - start)
        return times


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    return compare(noise() if data is None else mnist(data), 1000 if quick else 3000)


def compare(data: Data, steps: int, dtype: str = "float16") -> dict[str, Any]:
    """Measure plain and recorded turns, and bytes."""
    plain, recorded = Loop.fresh(), Loop.fresh()
    batches = list(data.batches(steps + _TURN))
    turns = [range(first, first + _TURN) for first in range(0, len(batches), _TURN)]
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        path = Path(directory) / "run"
        recorder = dualform.record(recorded.model, recorded.optimizer, path, dtype=dtype)
        measured = take_turns(
            recorder,
            lambda first, last: plain.train(data, batches[first:last]),
            lambda first, last: recorded.train(data, batches[first:last], recorder),
            turns,
        )
        size = dualform.load(path).summary()["bytes"]
    raw = 4 * _BATCH * len(batches) * sum(a + b for a, b in pairwise(_WIDTHS))
    return {
        **measured,
        "bytes": size,
        "bytes_ratio": size / raw,
        "steps": steps,
        "dtype": dtype,
        "data": data.source,
        "threads": torch.get_num_threads(),
    }


def report(results: dict[str, Any]) -> str:
    def step(name: str) -> str:
        return "min {min:.2f}, median {median:.2f}, between quartiles {spread:.2f} ms a step".format(**results[name])

    quarter, half, end = results["rss_mb"]
    return "\n".join(
        [
            f"{results['steps']} steps on {results['data']} data, stored as {results['dtype']}",
            f"plain     {step('plain_ms')}",
            f"recorded  {step('recorded_ms')}",
            f"overhead  {results['record_overhead']:.3f} times the plain run: the median of its turns, which took "
            f"{', '.join(f'{ratio:.2f}' for ratio in results['record_overheads'])}; "
            f"{results['closing']:.3f} for its end",
            f"on disk   {results['bytes'] / 1e6:,.0f} MB, {results['bytes_ratio']:.3f} of raw float32 keys and values",
            f"memory    grown by {quarter:.0f} MB at a quarter, {half:.0f} at half, {end:.0f} at the end",
        ]
    )


if __name__ == "__main__":
    run("recording", __doc__, measure, report)
