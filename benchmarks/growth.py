"""The claim: seconds and bytes grow in proportion to the slots, no faster, and with the width no faster than training.

    python -m benchmarks.growth --figure growth.png

Two equal networks (an MLP 64-w-w-10, batches of 128, SGD with momentum) are trained on the same batches, one plain,
one recorded, in turns of 512 steps, each recorded turn ended by `recorder.sync()`. Then the run is loaded and asked
single questions about its second layer: the top 500 of every class, totals per class and a timeline. One sweep goes
over the number of slots a layer, one over the width w. Inputs are random, near a direction for each class, as
activations are; a tenth of the labels is drawn by chance, so that errors do not fade. No input comes twice, so
nothing is saved by storing repeated keys once.

`recorded` are the seconds of all turns, of beginning the run and of ending it; `ratio` is the median over turns of a
recorded one over the plain one before it. Where a run has fewer than three turns, several are made, and the quickest
counts. `first` is from loading the run to its first answer: nothing of it was read before, but it has just been
written and so is in the system's cache. `between` is the slowest of the next four queries, among which a sketch of the
keys is made for all later ones; it is kept in memory, in at most 512 MB a layer. `further` are seven queries after
them: the quickest, the median, and how far the slowest is from the quickest. `bytes` are those of all three layers
and of the snapshots taken at each sync, which grow with the square of w.

Slopes are those of straight lines fitted to the logarithms: 1 is growth in proportion. `end_slopes` are of the last two
points alone, where fixed costs weigh least. K and M are 1,024 and its square.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from benchmarks.growth_figure import figure, in_k
from benchmarks.peers.meters import size, timed
from dualform import Timeline, Top, Total
from dualform.experiments.loops import seeded
from dualform.plots.style import require_matplotlib

_INPUTS, _CLASSES, _BATCH = 64, 10, 128
_LAYER = "2"  # whose keys are the activations of the first hidden layer
_BETWEEN, _FURTHER = 4, 7  # queries after the first
_GROWING = ("plain", "recorded", "bytes", "first", "further")
K = 1024

Batch = tuple[Tensor, Tensor, Tensor]  # row numbers, inputs, labels
Point = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Where to measure: slots at one width, widths with one number of slots."""

    slots: tuple[int, ...] = (12 * K, 48 * K, 192 * K, 768 * K, 3 * K * K)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    width: int = 128
    length: int = 48 * K  # slots of the runs of all widths
    turn: int = 512  # steps
    turns: int = 3  # at least

    @classmethod
    def of(cls, quick: bool) -> "Settings":
        return cls(slots=cls.slots[:3], widths=cls.widths[:4]) if quick else cls()


class Life(NamedTuple):
    """Measurements of one run."""

    turns: list[tuple[float, float]]  # seconds: plain, recorded
    ends: float  # seconds of beginning and ending to record
    bytes: int
    queries: list[float]  # seconds, in the order they were asked


def batches(first: int, steps: int) -> Iterator[Batch]:
    """Yield batches from step `first` on of a stream that is always the same."""
    directions = torch.randn(_CLASSES, _INPUTS, generator=torch.Generator().manual_seed(0))
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1 + step)
        true, other = torch.randint(_CLASSES, (2, _BATCH), generator=generator)
        gain = 0.5 + torch.rand(_BATCH, 1, generator=generator)
        inputs = gain * directions[true] + 0.3 * torch.randn(_BATCH, _INPUTS, generator=generator)
        labels = torch.where(torch.rand(_BATCH, generator=generator) < 0.1, other, true)
        yield torch.arange(step * _BATCH, (step + 1) * _BATCH), inputs, labels


class Loop:
    """A network, always with the same initial weights, and its optimiser, to be trained turn by turn."""

    def __init__(self, width: int) -> None:
        self.model = seeded(lambda: _network(width), seed=0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def train(self, turn: Sequence[Batch], recorder: dualform.Recorder | None = None) -> None:
        for ids, inputs, labels in turn:
            if recorder is not None:
                recorder.tag(id=ids, label=labels)
            loss = F.cross_entropy(self.model(inputs), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if recorder is not None:
            recorder.sync()


def _network(width: int) -> nn.Sequential:
    first, second, last = nn.Linear(_INPUTS, width), nn.Linear(width, width), nn.Linear(width, _CLASSES)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def live(slots: int, width: int, turn: int) -> Life:
    """Train plain and recorded, ask, and leave nothing behind."""
    plain, recorded, steps = Loop(width), Loop(width), slots // _BATCH
    turns = []
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory, ExitStack() as stack:
        path = Path(directory) / "run"
        recorder, begun = timed(stack.enter_context, dualform.record(recorded.model, recorded.optimizer, path))
        for first in range(0, steps, turn):
            some = list(batches(first, min(turn, steps - first)))
            turns.append((timed(plain.train, some)[1], timed(recorded.train, some, recorder)[1]))
        _, ended = timed(stack.close)
        return Life(turns, begun + ended, size(path), ask(path, recorded.model))


def ask(path: Path, model: nn.Module) -> list[float]:
    """Return the seconds of single queries, the first one including loading the run."""
    _, inputs, _ = next(batches(first=1 << 40, steps=1))  # seen by no training
    memory, loading = timed(dualform.load, path)

    def answer(row: int) -> list[Any]:
        spotlight = memory.attend(model, inputs[row : row + 1])
        return spotlight[_LAYER].collect(Top(500, by="label"), Total(by="label"), Timeline(60))

    first, *later = (timed(answer, row)[1] for row in range(1 + _BETWEEN + _FURTHER))
    return [loading + first, *later]


def point(slots: int, width: int, settings: Settings) -> Point:
    """Measure as many runs as are needed for enough turns; the fastest counts."""
    lives = [live(slots, width, settings.turn)]
    while sum(len(life.turns) for life in lives) < settings.turns:
        lives.append(live(slots, width, settings.turn))
    ratios = [recorded / plain for life in lives for plain, recorded in life.turns]
    further = [seconds for life in lives for seconds in life.queries[1 + _BETWEEN :]]
    return {
        "slots": slots,
        "width": width,
        "plain": min(sum(plain for plain, _ in life.turns) for life in lives),
        "recorded": min(life.ends + sum(recorded for _, recorded in life.turns) for life in lives),
        "ratio": median(ratios),
        "ratios": sorted(ratios),
        "bytes": lives[-1].bytes,
        "bytes_per_slot": lives[-1].bytes / slots,
        "first": min(life.queries[0] for life in lives),
        "between": min(max(life.queries[1 : 1 + _BETWEEN]) for life in lives),
        "further": min(further),
        "further_median": median(further),
        "further_spread": max(further) - min(further),
        "runs": len(lives),
    }


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent p of y = c x^p, by least squares of the logarithms."""
    if len(set(x)) < 2 or len(x) != len(y) or min(*x, *y) <= 0:
        raise ValueError(f"a slope needs two or more different sizes, all numbers above zero: not {x} and {y}")
    across, up = np.log(x), np.log(y)
    across = across - across.mean()
    return float(across @ (up - up.mean()) / (across @ across))


def slopes(points: Sequence[Point], over: str) -> dict[str, float]:
    """Return the slopes of everything that grows."""
    return {name: slope([point[over] for point in points], [point[name] for point in points]) for name in _GROWING}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure both sweeps; inputs are random, data are not used."""
    return sweep(Settings.of(quick))


def sweep(settings: Settings) -> dict[str, Any]:
    """Measure sweeps of any sizes."""
    live(8 * _BATCH, settings.width, settings.turn)  # to warm up: what a process does once is no part of a point
    by_slots = [(slots, settings.width) for slots in settings.slots]
    by_width = [(settings.length, width) for width in settings.widths]
    measured = {shape: point(*shape, settings) for shape in dict.fromkeys(by_slots + by_width)}
    points = {"slots": [measured[shape] for shape in by_slots], "width": [measured[shape] for shape in by_width]}
    fitted = {over: slopes(row, over) for over, row in points.items()}
    ends = {over: slopes(row[-2:], over) for over, row in points.items()}
    facts = {"batch": _BATCH, "inputs": _INPUTS, "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {"growth": {**points, "slopes": fitted, "end_slopes": ends}, "settings": {**asdict(settings), **facts}}


def report(results: dict[str, Any]) -> str:
    """Return a table for each sweep, with its slopes below."""
    settings, growth = results["settings"], results["growth"]
    return "\n".join([
        f"batches of {settings['batch']}, threads: {settings['threads']}, torch {settings['torch']}; "
        "K and M are 1,024 and its square; in brackets: how much longer the slowest took",
        *_table(growth, "slots"),
        *_table(growth, "width"),
    ])  # fmt: skip


def _table(growth: dict[str, Any], over: str) -> list[str]:
    head = "  slots  width    plain s  recorded s  ratio        MB  bytes/slot   first ms  between ms      further ms"
    fitted, ends = growth["slopes"][over], growth["end_slopes"][over]
    said = (f"{name} {fitted[name]:.2f} ({ends[name]:.2f})" for name in _GROWING)
    return ["", head, *map(_line, growth[over]), f"slopes over {over} (of the last two): {', '.join(said)}"]


def _line(point: Point) -> str:
    further = f"{1e3 * point['further']:.1f} ({1e3 * point['further_spread']:.1f})"
    return (
        f"{in_k(point['slots']):>7}{point['width']:>7}{point['plain']:>11.2f}{point['recorded']:>12.2f}{point['ratio']:>7.2f}"
        f"{point['bytes'] / 1e6:>10.1f}{point['bytes_per_slot']:>12.0f}{1e3 * point['first']:>11.1f}"
        f"{1e3 * point['between']:>12.1f}{further:>16}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 192K slots and a width of 512: about a minute")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--figure", type=Path, help="where to draw it, a PNG or PDF")
    options = parser.parse_args()
    if options.figure:
        require_matplotlib()
    results = measure(None, options.quick)
    print(json.dumps(results, indent=1) if options.json else report(results))
    if options.figure:
        figure(results).savefig(options.figure)


if __name__ == "__main__":
    main()
