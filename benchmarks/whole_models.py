"""The claim: whole models are recorded, convolutions, attention, norms and a tied head, in so many plain trainings.

    python -m benchmarks.whole_models

A LeNet (images of 28 x 28, batches of 64, SGD with momentum) and a GPT like nanoGPT's (4 layers, width 128, 4 heads,
128 tokens, a vocabulary of 256, its head tied to its embedding; batches of 16, AdamW) are trained on random numbers,
each twice in one process, plain and recorded, in turns (`benchmarks.turns`). `raw_bytes` is what keys and values of a
step are as float32: of a convolution, which stores the maps that patches are taken from, each map once. `stored_bytes`
is what the run takes a step, without snapshots.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from benchmarks.command import run as run_command
from benchmarks.turns import take_turns
from dualform.store import Run

_TURNS = 7  # the first of which warms up


def lenet() -> nn.Sequential:
    """Make a LeNet-5 with ReLU and pools by maximum."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Sizes of a GPT."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    tokens: int = 128
    vocabulary: int = 256


class Block(nn.Module):
    """x + attention of it, and that + an MLP of that, with norms before each."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads = sizes.width, sizes.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, tokens, width of one)
        x = x + self.c_proj(attended.transpose(1, 2).flatten(2))
        changed: Tensor = x + self.mlp(self.ln_2(x))
        return changed


class GPT(nn.Module):
    """A causal Transformer whose head is its embedding."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(sizes.vocabulary, sizes.width), nn.Embedding(sizes.tokens, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes) for _ in range(sizes.layers)))
        self.ln_f = nn.LayerNorm(sizes.width)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        logits: Tensor = self.lm_head(self.ln_f(self.blocks(embedded)))
        return logits


@dataclass(frozen=True)
class Subject:
    """What is trained, and how long each of its turns is."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]  # random inputs and targets
    turn: int  # steps


def lenet_subject() -> Subject:
    """Return the LeNet with its optimiser and its images."""

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(64, 1, 28, 28, generator=generator), torch.randint(10, (64,), generator=generator)

    return Subject(lenet, partial(torch.optim.SGD, lr=1e-2, momentum=0.9), batch, turn=60)


def gpt_subject(sizes: Sizes) -> Subject:
    """Return the GPT with its optimiser and its tokens."""

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(sizes.vocabulary, (16, sizes.tokens + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return Subject(partial(GPT, sizes), partial(torch.optim.AdamW, lr=3e-4), batch, turn=6)


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure both models; what they are trained on is random, whatever data there are."""
    subjects = {"LeNet": lenet_subject(), "GPT": gpt_subject(Sizes())}
    return {name: compare(subject, subject.turn // 3 if quick else subject.turn) for name, subject in subjects.items()}


def compare(subject: Subject, turn: int) -> dict[str, Any]:
    """Train a model in turns of so many steps, plain and recorded, and certify what was recorded."""
    generator = torch.Generator().manual_seed(0)
    batches = [subject.batch(generator) for _ in range(_TURNS * turn)]
    plain, recorded = Loop.fresh(subject, batches), Loop.fresh(subject, batches)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        recorder = dualform.record(recorded.model, recorded.optimizer, Path(directory) / "run")
        measured = take_turns(
            recorder,
            plain.train,
            partial(recorded.train, recorder=recorder),
            [range(number * turn, (number + 1) * turn) for number in range(_TURNS)],
        )
        run, memory = Run(Path(directory) / "run"), dualform.load(Path(directory) / "run")
        return {
            **measured,
            "stored_bytes": (run.nbytes - sum(shard.state_nbytes for shard in run.shards)) / len(batches),
            "raw_bytes": _raw_bytes(run) / len(batches),
            "coverage": str(memory.coverage),
            "attributed": memory.coverage.attributed,
            "certificate": memory.verify().headline,
            "steps": len(batches),
            "dtype": run.manifest.storage.dtype,
            "threads": torch.get_num_threads(),
        }


@dataclass(frozen=True)
class Loop:
    """A model and its optimiser, to be trained turn by turn."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Sequence[tuple[Tensor, Tensor]]

    @classmethod
    def fresh(cls, subject: Subject, batches: Sequence[tuple[Tensor, Tensor]]) -> "Loop":
        """Make them anew, always with the same initial weights."""
        torch.manual_seed(0)
        model = subject.model()
        return cls(model, subject.optimizer(model.parameters()), batches)

    def train(self, first: int, last: int, recorder: dualform.Recorder | None = None) -> list[float]:
        """Take the steps [first, last), and return the seconds of each."""
        times = []
        for inputs, targets in self.batches[first:last]:
            start = perf_counter()
            if recorder is not None:
                recorder.tag(id=torch.arange(len(inputs)))
            outputs = self.model(inputs)
            self.optimizer.zero_grad()
            F.cross_entropy(outputs.flatten(0, -2), targets.flatten()).backward()
            self.optimizer.step()
            times.append(perf_counter() - start)
        return times


def _raw_bytes(run: Run) -> int:
    """Return what keys and values take as float32, a map of a convolution once, a whole number as four bytes."""
    keys = (
        layer.keys.width * sum(shard.key_rows(layer.name) for shard in run.shards)
        if layer.keys.geometry
        else layer.keys.width * run.slots(layer.name)
        for layer in run.layers.values()
    )
    values = (layer.d_out * run.slots(layer.name) for layer in run.layers.values())
    return 4 * (sum(keys) + sum(values))


def report(results: dict[str, Any]) -> str:
    """Return a few lines for each model."""
    return "\n".join(
        line
        for name, of in results.items()
        for line in (
            f"{name}: {of['steps']} steps, {of['threads']} threads, stored as {of['dtype']}",
            f"  overhead  {of['record_overhead']:.2f} times the plain run: the median of its turns, which took "
            f"{', '.join(f'{ratio:.2f}' for ratio in of['record_overheads'])}; {of['closing']:.2f} for its end",
            f"  a step    {of['plain_ms']['median']:.1f} ms plain, {of['recorded_ms']['median']:.1f} ms recorded",
            f"  bytes     {of['stored_bytes'] / 1e6:.2f} MB a step, of {of['raw_bytes'] / 1e6:.2f} MB in raw float32",
            f"  memory    grown by {of['rss_mb'][2]:.0f} MB",
            f"  coverage  {of['coverage']}",
            f"  exact     {of['certificate']}",
        )
    )


if __name__ == "__main__":
    run_command("whole_models", __doc__, measure, report)
