"""Train and record the paper's image classifiers.

    trained = train([Phase((mnist,), 3000)], PAPER, seed=0, path="runs/single")
    trained.model, trained.accuracies       # per task, in per cent, after each phase

Hyperparameters are those of the paper's released code, which give its numbers: the text says plain SGD, the code
has momentum and clips gradients.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.loops import SLOTS, ShuffledEpochs, seeded
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
    recipe: dualform.Recipe
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


def training_recipe(phases: Sequence[Phase], hparams: ImageHyperparameters, seed: int) -> dualform.Recipe:
    """Return how a classifier is trained through all phases with one optimiser; the same seed gives the same run.

    Args:
        phases: of the training, in order.
        hparams: how to make and train the network.
        seed: of the initial weights and the batches.
    """
    sizes = [(sum(len(task.train) for task in phase.tasks), phase.steps) for phase in phases]
    epochs = ShuffledEpochs(sizes, hparams.batch, torch.Generator().manual_seed(seed))

    def batch(step: int) -> dict[str, Any]:
        drawn = epochs[step]
        return _batch(phases[drawn.phase], drawn.rows)

    return dualform.Recipe(
        model=lambda: seeded(hparams.network, seed),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=hparams.lr, momentum=hparams.momentum),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(model(batch["image"]), batch["label"], reduction="none"),
        tags=["label", "task"],
        seed=seed,
        clip=hparams.clip,
    )


def _batch(phase: Phase, rows: Tensor) -> dict[str, Any]:
    """Return some examples of all tasks of a phase; a batch has no order: its examples come task by task."""
    parts, start = [], 0
    for task in phase.tasks:
        own = rows[(rows >= start) & (rows < start + len(task.train))] - start
        start += len(task.train)
        if len(own):
            parts.append((task, own))
    return {
        "id": torch.cat([task.train.first_id + own for task, own in parts]),
        "image": torch.cat([task.train.images[own] for task, own in parts]),
        "label": torch.cat([task.train.labels[own] for task, own in parts]),
        "task": [task.name for task, own in parts for _ in range(len(own))],
    }


def train(
    phases: Sequence[Phase],
    hparams: ImageHyperparameters,
    *,
    seed: int,
    path: Path,
    keep: str = SLOTS,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda step: None,
) -> TrainedClassifier:
    """Train through all phases, and record it.

    Args:
        phases: of the training, in order.
        hparams: how to make and train the network.
        seed: of the initial weights and the batches.
        path: of the run.
        keep: what is stored: slots, or snapshots to make them again from.
        about: what else the run says of itself.
        progress: called with the number of each finished step.
    """
    recipe = training_recipe(phases, hparams, seed)
    tasks = list({task.name: task for phase in phases for task in phase.tasks}.values())
    about = {
        "model": hparams.model,
        "inputs": INPUTS,
        "class_names": {task.name: list(task.class_names) for task in tasks},
        "image_shape": list(tasks[0].image_shape),
        **(about or {}),
    }
    threads, accuracies, seconds = 1 if hparams.small else None, [], 0.0
    for end in accumulate(phase.steps for phase in phases):
        began = perf_counter()
        model = recipe.train(
            path, end, keep=keep, about=about, progress=progress, threads=threads
        )  # from the end before
        seconds += perf_counter() - began
        accuracies.append({task.name: accuracy(model, task.test) for task in tasks})
    return TrainedClassifier(model, recipe, accuracies, seconds)


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
