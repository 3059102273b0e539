"""Train convolutional networks, and record what can be kept of it.

    trained = train(task, CIFAR, 2340, seed=0, runs=Path("runs/seed-0"))
    dualform.load(trained.whole)            # the output layer in all steps, with values
    dualform.load(trained.last_epoch)       # all layers in the last epoch, keys only

All layers of all steps would take tens of gigabytes: a convolution has a slot for each of its positions. So the
output layer is recorded through the whole training, and can be certified; every layer is recorded in the last epoch,
which sees each image once and as it is, neither shifted nor mirrored, so that positions are those of the image itself.
That epoch is trained again for it, from where the steps before it have come to.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.cifar.images import Moves, draw_moves, moved
from dualform.experiments.cifar.network import OUTPUT, cifar_network, digits_network, layers_asked
from dualform.experiments.loops import SLOTS, SNAPSHOTS, ShuffledEpochs, seeded
from dualform.experiments.tasks import Task
from dualform.experiments.training import accuracy
from dualform.inputs import INPUTS

WHOLE, LAST_EPOCH, IN_TURN = "whole", "last-epoch", "in-turn"
_WARM_UP = 0.25  # share of the steps in which the learning rate rises
Progress = Callable[[int], None]
Naming = Callable[[str], Mapping[str, Any]]  # called with one of the names above


@dataclass(frozen=True)
class CnnHyperparameters:
    """How a convolutional network is made and trained."""

    model: str  # import path of `network`
    network: Callable[[], nn.Sequential]
    batch: int
    lr: float  # the highest
    momentum: float = 0.9
    decay: float = 5e-4
    smoothing: float = 0.1  # of labels
    shift: int = 0  # pixels
    mirror: bool = False
    small: bool = False


_HOME = "dualform.experiments.cifar.network"
CIFAR = CnnHyperparameters(f"{_HOME}:cifar_network", cifar_network, batch=64, lr=0.1, shift=3, mirror=True)
DIGITS = CnnHyperparameters(f"{_HOME}:digits_network", digits_network, batch=32, lr=0.1, small=True)


@dataclass(frozen=True)
class TrainedCnn:
    """A network trained on all classes at once, and where its training is recorded."""

    model: nn.Module
    recipe: dualform.Recipe
    of_last_epoch: dualform.Recipe
    accuracy: float  # per cent
    seconds: float
    whole: Path
    last_epoch: Path
    not_recorded: dict[str, str]  # layers that attend but cannot be recorded, and why


@dataclass(frozen=True)
class TrainedInTurn:
    """A network trained on one task after the other, with everything recorded."""

    model: nn.Module
    recipe: dualform.Recipe
    accuracies: list[dict[str, float]]  # after each task, by task, in per cent
    seconds: float
    run: Path


def train(
    task: Task,
    hparams: CnnHyperparameters,
    steps: int,
    *,
    seed: int,
    runs: Path,
    keep: str = SLOTS,
    named: Naming = lambda training: {},
    progress: Progress = lambda step: None,
) -> TrainedCnn:
    """Train on all classes; the same seed gives the same network.

    Args:
        task: all classes.
        hparams: how to make and train the network.
        steps: how many.
        seed: of the initial weights, the batches and how images are moved.
        runs: directory for the two runs.
        keep: what is stored: slots, or snapshots to make them again from.
        named: returns what a run says of its recipe.
        progress: called with the number of each finished step.
    """
    began, known = perf_counter(), _about(hparams, [task])
    recipe, first = whole_recipe(task, hparams, steps, seed), last_epoch_begin(task, hparams, steps)
    common = {"keep": keep, "threads": 1 if hparams.small else None}
    options = {**common, "layers": OUTPUT, "about": {**known, **named(WHOLE)}, "progress": progress}
    start = train_until(recipe, runs / WHOLE, first, **options)
    model = recipe.train(runs / WHOLE, steps, **options)  # goes on from there
    layers, not_recorded = _recordable(recipe, values=keep == SNAPSHOTS)
    if keep == SLOTS:
        common["values"] = False
    rest = rest_of(recipe, first, lambda: start)
    rest.train(runs / LAST_EPOCH, steps - first, layers=layers, about={**known, **named(LAST_EPOCH)}, **common)
    seconds = perf_counter() - began
    reached = accuracy(model, task.test)
    return TrainedCnn(model, recipe, rest, reached, seconds, runs / WHOLE, runs / LAST_EPOCH, not_recorded)


def train_in_turn(
    tasks: Sequence[Task],
    hparams: CnnHyperparameters,
    steps: int,
    *,
    seed: int,
    runs: Path,
    keep: str = SLOTS,
    named: Naming = lambda training: {},
    progress: Progress = lambda step: None,
) -> TrainedInTurn:
    """Train on one task after the other with one optimiser, and record all layers with their values.

    Args:
        tasks: in this order.
        hparams: how to make and train the network.
        steps: on each task.
        seed: of the initial weights and the batches.
        runs: directory for the run.
        keep: what is stored: slots, or snapshots to make them again from.
        named: returns what the run says of its recipe.
        progress: called with the number of each finished step.
    """
    recipe, about = training_recipe(tasks, hparams, steps, seed), {**_about(hparams, tasks), **named(IN_TURN)}
    threads, accuracies, seconds = 1 if hparams.small else None, [], 0.0
    for number in range(1, len(tasks) + 1):
        began = perf_counter()
        model = recipe.train(  # from where it was left: views that end there find a snapshot
            runs / IN_TURN, number * steps, keep=keep, about=about, progress=progress, threads=threads
        )
        seconds += perf_counter() - began
        accuracies.append({other.name: accuracy(model, other.test) for other in tasks})
    return TrainedInTurn(model, recipe, accuracies, seconds, runs / IN_TURN)


def training_recipe(
    tasks: Sequence[Task], hparams: CnnHyperparameters, steps: int, seed: int, moved_until: int = 0
) -> dualform.Recipe:
    """Return how a network is trained on one task after the other.

    Args:
        tasks: in this order.
        hparams: how to make and train the network.
        steps: on each task.
        seed: of the initial weights, the batches and how images are moved.
        moved_until: the step from which on images are seen as they are.
    """

    def draw(step: int, generator: torch.Generator) -> Moves | None:
        is_moved = hparams.shift > 0 and step < moved_until
        return draw_moves(hparams.batch, hparams.shift, hparams.mirror, generator) if is_moved else None

    sizes = [(len(task.train), steps) for task in tasks]
    epochs = ShuffledEpochs(sizes, hparams.batch, torch.Generator().manual_seed(seed), draw)

    def batch(step: int) -> dict[str, Any]:
        of_step = epochs[step]
        task, rows, moves = tasks[of_step.phase], of_step.rows, of_step.drawn
        images = task.train.images[rows]
        return {
            "id": task.train.first_id + rows,
            "image": images if moves is None else moved(images, moves, hparams.shift),
            "label": task.train.labels[rows],
            "task": task.name,
        }

    return dualform.Recipe(
        model=lambda: seeded(hparams.network, seed),
        optimizer=lambda model: torch.optim.SGD(
            model.parameters(),
            lr=1.0,  # the schedule has the rates
            momentum=hparams.momentum,
            nesterov=True,
            weight_decay=hparams.decay,
        ),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(
            model(batch["image"]), batch["label"], label_smoothing=hparams.smoothing, reduction="none"
        ),
        tags=["label", "task"],
        seed=seed,
        schedule=lambda step: learning_rate(step % steps, steps, hparams.lr),
    )


def whole_recipe(task: Task, hparams: CnnHyperparameters, steps: int, seed: int) -> dualform.Recipe:
    """Return how a network is trained on all classes: images are moved until the last epoch."""
    return training_recipe([task], hparams, steps, seed, moved_until=last_epoch_begin(task, hparams, steps))


def last_epoch_begin(task: Task, hparams: CnnHyperparameters, steps: int) -> int:
    """Return the step at which the last epoch of a training begins."""
    return steps - min(steps, len(task.train) // hparams.batch)


# The last epoch as a training of its own


@dataclass(frozen=True)
class HalfTrained:
    """What a training has come to: the model's state and the optimiser's."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]


def train_until(recipe: dualform.Recipe, path: Path, step: int, **options: Any) -> HalfTrained | None:
    """Train and record the first steps of a recipe; return what the next step begins with, unless it is the first.

    Args:
        recipe: with one optimiser.
        path: of the run.
        step: how many steps it will have.
        options: of `Recipe.train`.
    """
    if not step:
        return None
    made: list[torch.optim.Optimizer] = []

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made.append(_one(recipe.optimizer(model)))
        return made[-1]

    model = replace(recipe, optimizer=optimizer).train(path, step, **options)
    return HalfTrained(model.state_dict(), made[-1].state_dict()["state"])


def rest_of(recipe: dualform.Recipe, first: int, start: Callable[[], HalfTrained | None]) -> dualform.Recipe:
    """Return the recipe of the same training from a step on.

    Args:
        recipe: of the whole training, with one optimiser.
        first: the step.
        start: returns what the step begins with; None: what a training begins with.
    """

    def model() -> nn.Module:
        network = recipe.model()
        if next(network.parameters()).is_meta:  # an outline, which has no weights
            return network
        if (begun := start()) is not None:
            network.load_state_dict(begun.model)
        return network

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made = _one(recipe.optimizer(model))
        if (begun := start()) is not None:
            state = deepcopy(begun.optimizer)  # which steps change in place
            made.load_state_dict({"state": state, "param_groups": made.state_dict()["param_groups"]})
        return made

    rate = recipe.schedule
    return replace(
        recipe,
        model=model,
        optimizer=optimizer,
        batch=lambda step: recipe.batch(first + step),
        schedule=None if rate is None else lambda step: rate(first + step),
    )


def _one(optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def _recordable(recipe: dualform.Recipe, *, values: bool) -> tuple[list[str], dict[str, str]]:
    """Return which layers that attend can be recorded, and which cannot, with the reason."""
    model = recipe.model()
    everything = dualform.record(model, recipe.optimizer(model), LAST_EPOCH, values=values)  # never entered
    layers = [name for name in layers_asked(model) if name in everything.layers]
    return layers, {name: everything.skipped[name] for name in layers_asked(model) if name not in layers}


def learning_rate(step: int, steps: int, highest: float) -> float:
    """Return a learning rate that rises evenly, and falls like a cosine to almost 0."""
    rising = max(1, round(_WARM_UP * steps))
    if step < rising:
        return highest * (step + 1) / rising
    return highest * (1 + cos(pi * (step + 1 - rising) / (steps + 1 - rising))) / 2


def _about(hparams: CnnHyperparameters, tasks: Sequence[Task]) -> dict[str, object]:
    return {
        "model": hparams.model,
        "inputs": INPUTS,
        "class_names": {task.name: list(task.class_names) for task in tasks},
        "image_shape": list(tasks[0].image_shape[-2:]),  # shown in grey
    }
