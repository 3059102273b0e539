"""The claim: recording the paper's MNIST run costs little, and no more memory the longer it runs.

    python -m benchmarks.recording --data data --steps 3000 --repeats 3

The same loop (an MLP 784-800-800-10, batches of 128, SGD with momentum, clipped gradients) is trained
plain and recorded in turn, in one process. `record_overhead` is the time of a recorded run, closed and
on the disk, over that of the plain run next to it; the median of the repeats. `bytes_ratio` compares the
run's bytes with its keys and values as raw float32. `rss_mb` is how far resident memory had grown at
most by a quarter, by half and by the end of the recorded run.

Pixels come from DIR/mnist (the IDX files; --data or DUALFORM_DATA), else they are random.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform.datasets import catalogue
from dualform.datasets.images import standardised

_WIDTHS = (784, 800, 800, 10)
_BATCH = 128
_WATCH = 10  # steps from one look at the resident memory to the next


@dataclass(frozen=True)
class Data:
    """Standardised pixels (examples, 784), their labels, and where they come from."""

    images: Tensor
    labels: Tensor
    source: str

    def batches(self, steps: int) -> Iterator[Tensor]:
        """The examples of each step, in a new order every epoch."""
        generator = torch.Generator().manual_seed(0)
        per_epoch = len(self.images) // _BATCH
        for step in range(steps):
            if step % per_epoch == 0:
                order = torch.randperm(len(self.images), generator=generator)
            first = step % per_epoch * _BATCH
            yield order[first : first + _BATCH]


@dataclass(frozen=True)
class Timing:
    """What one training run took: seconds a step, seconds in all, megabytes at most by each step looked at."""

    steps: list[float]
    total: float
    rss_mb: list[float]


def mnist(directory: Path) -> Data:
    """The training set."""
    train = catalogue.load("mnist", directory).train
    return Data(standardised(train.raw, by=train.raw), train.labels, "mnist")


def noise(examples: int = 60_000) -> Data:
    """Random data of the same shape."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(examples, 784, generator=generator)
    return Data(images, torch.randint(10, (examples,), generator=generator), "random")


def train(data: Data, steps: int, recording: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> Timing:
    """Train once. `recording` makes the context of the loop: a recorder, or one of nothing."""
    torch.manual_seed(0)
    first, second, last = (nn.Linear(a, b) for a, b in pairwise(_WIDTHS))
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)
    process = psutil.Process()
    before = process.memory_info().rss
    peak, rss, times = 0.0, [], []
    began = perf_counter()
    with recording(model, optimizer) as recorder:
        for step, ids in enumerate(data.batches(steps)):
            start = perf_counter()
            images, labels = data.images[ids], data.labels[ids]
            if recorder is not None:
                recorder.tag(id=ids, label=labels, task="mnist")
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            times.append(perf_counter() - start)
            if step % _WATCH == 0:
                peak = max(peak, (process.memory_info().rss - before) / 1e6)
                rss.append(peak)
    return Timing(times, perf_counter() - began, rss)


def measure(data: Data, steps: int, repeats: int, dtype: str) -> dict[str, Any]:
    """Plain and recorded runs in turn, after a short one of each to warm up."""
    plain, recorded, sizes = [], [], []
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        path = Path(directory) / "run"

        def recording(model: nn.Module, optimizer: torch.optim.Optimizer) -> dualform.Recorder:
            return dualform.record(model, optimizer, path, dtype=dtype, overwrite=True)

        def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
            return nullcontext()

        for context in (nothing, recording):
            train(data, min(steps, 100), context)
        for _ in range(repeats):
            plain.append(train(data, steps, nothing))
            recorded.append(train(data, steps, recording))
            sizes.append(dualform.load(path).summary()["bytes"])
    raw = 4 * _BATCH * steps * sum(a + b for a, b in pairwise(_WIDTHS))
    ratios = [after.total / before.total for before, after in zip(plain, recorded, strict=True)]
    return {
        "record_overhead": median(ratios),
        "record_overheads": ratios,
        "bytes": sizes[-1],
        "bytes_ratio": sizes[-1] / raw,
        "plain_ms": _per_step(plain),
        "recorded_ms": _per_step(recorded),
        "rss_mb": [max(run.rss_mb[int(q * (len(run.rss_mb) - 1))] for run in recorded) for q in (0.25, 0.5, 1.0)],
        "steps": steps,
        "repeats": repeats,
        "dtype": dtype,
        "data": data.source,
        "threads": torch.get_num_threads(),
    }


def _per_step(runs: list[Timing]) -> dict[str, float]:
    """Milliseconds of a step: the quickest, the median, and how far apart the quartiles are."""
    times = [1e3 * time for run in runs for time in run.steps]
    low, middle, high = quantiles(times, n=4)
    return {"min": min(times), "median": middle, "spread": high - low}


def _report(found: dict[str, Any]) -> str:
    def step(name: str) -> str:
        return "min {min:.2f}, median {median:.2f}, between quartiles {spread:.2f} ms a step".format(**found[name])

    quarter, half, end = found["rss_mb"]
    return "\n".join(
        [
            f"{found['steps']} steps on {found['data']} data, stored as {found['dtype']}",
            f"plain     {step('plain_ms')}",
            f"recorded  {step('recorded_ms')}",
            f"overhead  {found['record_overhead']:.3f} times the plain run, closing included "
            f"({', '.join(f'{ratio:.3f}' for ratio in found['record_overheads'])})",
            f"on disk   {found['bytes'] / 1e6:,.0f} MB, {found['bytes_ratio']:.3f} of raw float32 keys and values",
            f"memory    grown by {quarter:.0f} MB at a quarter, {half:.0f} at half, {end:.0f} at the end",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float16", choices=["float16", "float32", "float64"])
    parser.add_argument("--data", default=os.environ.get("DUALFORM_DATA"), help="a directory with mnist/ in it")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    data = noise() if options.data is None else mnist(Path(options.data))
    found = measure(data, options.steps, options.repeats, options.dtype)
    print(json.dumps(found, indent=1) if options.json else _report(found))


if __name__ == "__main__":
    main()
