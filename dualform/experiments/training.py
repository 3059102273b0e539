"""Train and record the paper's image classifiers.

    trained = train([Phase((mnist,), 3000)], PAPER, seed=0, path="runs/single")
    trained.model, trained.accuracies       # per task, in per cent, after each phase

Hyperparameters are those of the paper's released code, which give its numbers: the text says plain SGD, the code
has momentum and clips gradients.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.loops import epochs, one_thread, seeded
from dualform.experiments.tasks import Task, TaskExamples, training_images
from dualform.inputs import INPUTS, save_inputs


@dataclass(frozen=True)
class ImageHyperparameters:
    """How the networks of an experiment are made and trained."""

    model: str  # import path of `network`
    network: Callable[[], nn.Sequential]
    batch: int
    lr: float
    momentum: float = 0.9
    clip: float = 1.0
    small: bool = False


@dataclass(frozen=True)
class Phase:
    """A part of the training, on shuffled examples of one or more tasks."""

    tasks: tuple[Task, ...]
    steps: int


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained network, and how its training went."""

    model: nn.Module
    accuracies: list[dict[str, float]]  # after each phase: per cent by task
    seconds: float


def paper_network() -> nn.Sequential:
    """Make the paper's network: 784 pixels, two hidden layers of 800, ten classes."""
    return _network(784, 800, 800, 10)


def small_network() -> nn.Sequential:
    """Make a network for small images: 64 pixels, two hidden layers of 64, ten classes."""
    return _network(64, 64, 64, 10)


def _network(pixels: int, first: int, second: int, classes: int) -> nn.Sequential:
    """Make linear layers with the paper's names, and ReLU between them."""
    return nn.Sequential(
        OrderedDict([
            ("layer-0", nn.Linear(pixels, first)),
            ("relu-0", nn.ReLU()),
            ("layer-1", nn.Linear(first, second)),
            ("relu-1", nn.ReLU()),
            ("layer-2", nn.Linear(second, classes)),
        ])
    )  # fmt: skip


PAPER = ImageHyperparameters("dualform.experiments.training:paper_network", paper_network, batch=128, lr=3e-3)
SMALL = ImageHyperparameters(
    "dualform.experiments.training:small_network", small_network, batch=32, lr=2e-2, small=True
)


def train(
    phases: Sequence[Phase],
    hparams: ImageHyperparameters,
    *,
    seed: int,
    path: Path,
    progress: Callable[[int], None] = lambda step: None,
) -> TrainedClassifier:
    """Train through all phases with one optimiser, and record it; the same seed gives the same run.

    Args:
        phases: of the training, in order.
        hparams: how to make and train the network.
        seed: of the initial weights and the batches.
        path: of the run.
        progress: called with the number of each finished step.
    """
    model = seeded(hparams.network, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=hparams.lr, momentum=hparams.momentum)
    generator = torch.Generator().manual_seed(seed)
    tasks = list({task.name: task for phase in phases for task in phase.tasks}.values())
    about = {
        "model": hparams.model,
        "inputs": INPUTS,
        "class_names": {task.name: list(task.class_names) for task in tasks},
        "image_shape": list(tasks[0].image_shape),
    }
    accuracies, began, tested = [], perf_counter(), 0.0
    with (
        one_thread() if hparams.small else nullcontext(),
        dualform.record(model, optimizer, path, about=about) as recorder,
    ):
        for phase in phases:
            for batch in _batches(phase, hparams.batch, generator):
                recorder.tag(id=batch.ids, label=batch.labels, task=batch.tasks)
                loss = F.cross_entropy(model(batch.images), batch.labels)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), hparams.clip)
                optimizer.step()
                progress(recorder.steps - 1)
            since = perf_counter()
            accuracies.append({task.name: accuracy(model, task.test) for task in tasks})
            tested += perf_counter() - since
    return TrainedClassifier(model, accuracies, perf_counter() - began - tested)


@dataclass(frozen=True)
class _Batch:
    images: Tensor
    labels: Tensor
    ids: Tensor
    tasks: list[str]


def _batches(phase: Phase, size: int, generator: torch.Generator) -> Iterator[_Batch]:
    """Yield batches of shuffled examples of all tasks of a phase."""
    sizes = [len(task.train) for task in phase.tasks]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for rows in epochs(sum(sizes), size, phase.steps, generator):
        parts = []  # a batch has no order: its examples come task by task
        for task, start, count in zip(phase.tasks, starts, sizes, strict=True):
            own = rows[(rows >= start) & (rows < start + count)] - start
            if len(own):
                parts.append((task, own))
        yield _Batch(
            images=torch.cat([task.train.images[own] for task, own in parts]),
            labels=torch.cat([task.train.labels[own] for task, own in parts]),
            ids=torch.cat([task.train.first_id + own for task, own in parts]),
            tasks=[task.name for task, own in parts for _ in range(len(own))],
        )


def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """Return the class with the highest output for each image, (n,)."""
    with torch.no_grad():
        return torch.cat([model(part).argmax(dim=1) for part in images.split(1000)])


def accuracy(model: nn.Module, examples: TaskExamples) -> float:
    """Return the accuracy in per cent."""
    return 100 * int((predictions(model, examples.images) == examples.labels).sum()) / len(examples)


def save_test_sets(run: Path, tasks: Sequence[Task]) -> None:
    """Save test inputs, one task after the other, for later questions to a run that is kept."""
    save_inputs(
        run,
        inputs=torch.cat([task.test.images for task in tasks]),
        labels=torch.cat([task.test.labels for task in tasks]),
        tasks=torch.cat([torch.full_like(task.test.labels, number) for number, task in enumerate(tasks)]),
        images=torch.cat([task.test.raw for task in tasks]),
        training_images=training_images(tasks),
    )
