"""Trainings that several processes record together, or one process by itself that sees the joint batch.

    python -m tests.recorder.processes DIRECTORY MEETING RANK SIZE NAME...       # one of them
    launch(directory, size=2, names=["mlp"])                            # all of them

Each training is recorded to DIRECTORY/NAME, and NAME+ goes on with it from its last checkpoint. What goes wrong on
purpose is left in DIRECTORY/NAME.RANK.txt.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dualform
from dualform.errors import DualformError

EXAMPLES, CLASSES, TOKENS, LENGTH = 192, 4, 23, 6


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, 12, generator=generator, dtype=dtype), torch.randint(
        CLASSES, (EXAMPLES,), generator=generator
    )


def texts() -> Tensor:
    return torch.randint(TOKENS, (EXAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(2))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, CLASSES))


class Transformer(nn.Module):
    """One block, with a head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, 8), nn.Embedding(LENGTH, 8)
        self.before, self.after = nn.LayerNorm(8), nn.LayerNorm(8)
        self.query, self.value = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.places(torch.arange(text.shape[1]))
        normed = self.before(x)
        scores = self.query(normed) @ normed.mT / 8**0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        x = x + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.value(normed)
        x = x + self.down(F.gelu(self.up(self.after(x))))
        logits: Tensor = self.head(x)
        return logits


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return Transformer()


class Forked(nn.Module):
    """One of two layers is used, as the step says: in some steps another one in each process."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(8, CLASSES)
        self.way = 0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu((self.first, self.second)[self.way](x)))
        return logits


def forked() -> nn.Module:
    torch.manual_seed(0)
    return Forked()


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


@dataclass(frozen=True)
class Training:
    """A training, the same whoever carries it out."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer] = _sgd
    dtype: torch.dtype = torch.float64
    steps: int = 24
    batch: int = 16  # of all processes
    accumulate: int = 1
    clip: float | None = None
    half: bool = False
    uneven: bool = False  # the last process has fewer examples
    ends_early: bool = False  # the last process has fewer batches
    every: int = 12  # so many steps there is a checkpoint
    options: dict[str, Any] = field(default_factory=dict)  # of DistributedDataParallel

    def tokens(self) -> bool:
        return self.model is transformer


TRAININGS = {
    "mlp": Training(mlp),
    "float32": Training(mlp, _adam, torch.float32, steps=40),
    "transformer": Training(transformer, _adam, options={"gradient_as_bucket_view": True}),
    "accumulated": Training(transformer, _sgd, accumulate=2, clip=0.1),
    "static": Training(mlp, _adam, options={"static_graph": True}),
    "half": Training(mlp, _sgd, torch.float32, half=True),
    "forked": Training(forked, options={"find_unused_parameters": True}),
    "uneven": Training(mlp, uneven=True),
    "joined": Training(mlp, ends_early=True, options={}),
    "killed": Training(mlp, _adam, steps=300, every=20),
}


def batch_of(step: int, size: int) -> Tensor:
    return torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(step))[:size]


def share(ids: Tensor, training: Training, rank: int, size: int) -> Tensor:
    """Return the part of a batch that is a process's."""
    if training.uneven and size > 1:
        cut = len(ids) * 3 // 4
        return ids[:cut] if rank == 0 else ids[cut:]
    return ids.view(size, -1)[rank]


def loss_of(training: Training, model: nn.Module, ids: Tensor, recorder: Any) -> Tensor:
    """Tag a batch and return its loss."""
    if training.tokens():
        text = texts()[ids]
        recorder.tag(id=ids, position=torch.arange(LENGTH)[None])
        return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    x, labels = inputs(training.dtype)
    recorder.tag(id=ids, label=labels[ids])
    with torch.autocast("cpu", torch.bfloat16, enabled=training.half):
        return F.cross_entropy(model(x[ids]), labels[ids])


def step_of(
    training: Training,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recorder: dualform.Recorder,
    rank: int,
    size: int,
    step: int,
) -> None:
    """Take one step."""
    optimizer.zero_grad()
    parts = share(batch_of(step, training.batch * training.accumulate), training, rank, size).chunk(training.accumulate)
    for part in parts:
        if isinstance(plain := getattr(model, "module", model), Forked):
            plain.way = (step + (rank if step % 3 == 0 else 0)) % 2
        with model.no_sync() if size > 1 and part is not parts[-1] else nullcontext():  # type: ignore[operator]
            (loss_of(training, model, part, recorder) / len(parts)).backward()
    if training.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
    optimizer.step()


def train(training: Training, path: Path, rank: int, size: int, go_on: bool = False) -> None:
    """Train and record; or go on from the last checkpoint."""
    plain = training.model().to(training.dtype)
    model = DistributedDataParallel(plain, **training.options) if size > 1 else plain
    optimizer, checkpoint = training.optimizer(model.parameters()), path.with_suffix(".pt")
    resume = None
    if go_on:
        state = torch.load(checkpoint)
        resume = state["step"]
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    precision = "float32" if training.dtype == torch.float32 else "float64"
    with dualform.record(model, optimizer, path, dtype=precision, resume=resume) as recorder:
        one_step = partial(step_of, training, model, optimizer, recorder, rank, size)
        with model.join() if training.ends_early and size > 1 else nullcontext():  # type: ignore[operator]
            for step in range(resume or 0, training.steps):
                if training.ends_early and rank and step >= training.steps * 2 // 3:
                    break
                one_step(step)
                if (step + 1) % training.every == 0:
                    synced = recorder.sync()
                    if rank == 0:
                        state = {"step": synced, "model": plain.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(state, path.with_suffix(".new"))
                        path.with_suffix(".new").replace(checkpoint)
        for step in range(training.steps, training.steps + 3 * training.ends_early):
            one_step(step)
    if recorder.notes:
        path.with_suffix(f".{rank}.txt").write_text("\n".join(recorder.notes))


def occupied(path: Path, rank: int, size: int) -> None:
    """Record to a place that holds a run."""
    train(TRAININGS["mlp"], path.with_name("mlp"), rank, size)


def one_more_step(path: Path, rank: int, size: int) -> None:
    """Step once more in one process, by a gradient that is its own."""
    model = mlp()
    optimizer = _sgd(model.parameters())
    with dualform.record(DistributedDataParallel(model), optimizer, path) as recorder:
        for _ in range(2 + rank):
            optimizer.zero_grad()
            loss_of(TRAININGS["float32"], model, torch.arange(3), recorder).backward()
            optimizer.step()
        recorder.sync()


def not_averaged(path: Path, rank: int, size: int) -> None:
    """Step by what each process has computed by itself."""
    model = mlp()
    wrapped, optimizer = DistributedDataParallel(model), _sgd(model.parameters())
    with dualform.record(wrapped, optimizer, path) as recorder, wrapped.no_sync():
        loss_of(TRAININGS["float32"], wrapped, torch.arange(3) + rank, recorder).backward()
        optimizer.step()


def other_layers(path: Path, rank: int, size: int) -> None:
    """Record other layers in each process."""
    model = mlp()
    with dualform.record(DistributedDataParallel(model), _sgd(model.parameters()), path, layers=["0", "2"][rank]):
        pass


WRONG = {
    "occupied": occupied,
    "one_more_step": one_more_step,
    "not_averaged": not_averaged,
    "other_layers": other_layers,
}


def launch(directory: Path, size: int, names: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Begin trainings, one after the other, in so many processes; return these."""
    directory.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.recorder.processes", str(directory), token_hex(4)]
    return [
        subprocess.Popen(
            [*command, str(rank), str(size), *names], env=environment, text=True, stderr=subprocess.PIPE, cwd=Path.cwd()
        )
        for rank in range(size)
    ]


def main(directory: Path, meeting: str, rank: int, size: int, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{directory / meeting}", rank=rank, world_size=size)
    for name in names:
        if name in WRONG:
            try:
                WRONG[name](directory / name, rank, size)
            except DualformError as error:
                (directory / f"{name}.{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        else:
            train(TRAININGS[name.rstrip("+")], directory / name.rstrip("+"), rank, size, name.endswith("+"))
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
