"""Train convolutional networks, and record what can be kept of it.

    trained = train(task, CIFAR, 2340, seed=0, runs=Path("runs/seed-0"))
    dualform.load(trained.whole)            # the output layer in all steps, with values
    dualform.load(trained.last_epoch)       # all layers in the last epoch, keys only

All layers of all steps would take tens of gigabytes: a convolution has a slot for each of its positions. So the
output layer is recorded through the whole training, and can be certified; every layer is recorded in the last epoch,
which sees each image once and as it is, neither shifted nor mirrored, so that positions are those of the image itself.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.cifar.images import augmented
from dualform.experiments.cifar.network import OUTPUT, cifar_network, digits_network, layers_asked
from dualform.experiments.loops import epochs, one_thread, seeded
from dualform.experiments.tasks import Task
from dualform.experiments.training import accuracy
from dualform.inputs import INPUTS

WHOLE, LAST_EPOCH, IN_TURN = "whole", "last-epoch", "in-turn"
_WARM_UP = 0.25  # share of the steps in which the learning rate rises
Progress = Callable[[int], None]


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
    accuracy: float  # per cent
    seconds: float
    whole: Path
    last_epoch: Path
    not_recorded: dict[str, str]  # layers that attend but cannot be recorded, and why


@dataclass(frozen=True)
class TrainedInTurn:
    """A network trained on one task after the other, with everything recorded."""

    model: nn.Module
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
    progress: Progress = lambda step: None,
) -> TrainedCnn:
    """Train on all classes; the same seed gives the same network.

    Args:
        task: all classes.
        hparams: how to make and train the network.
        steps: how many.
        seed: of the initial weights, the batches and how images are moved.
        runs: directory for the two runs.
        progress: called with the number of each finished step.
    """
    with _training(hparams, seed) as (model, optimizer, generator), ExitStack() as recording:
        began, about = perf_counter(), _about(hparams, [task])
        plain_from = steps - min(steps, len(task.train) // hparams.batch)
        whole = dualform.record(model, optimizer, runs / WHOLE, layers=OUTPUT, about=about)
        everything = dualform.record(model, optimizer, runs / LAST_EPOCH, values=False)  # only asked what that is
        recordable = [name for name in layers_asked(model) if name in everything.layers]
        recorders = [recording.enter_context(_on_purpose(whole))]
        for step, rows in enumerate(epochs(len(task.train), hparams.batch, steps, generator)):
            if step == plain_from:
                last = dualform.record(
                    model, optimizer, runs / LAST_EPOCH, layers=recordable, values=False, about=about
                )
                recorders.append(recording.enter_context(_on_purpose(last)))
            images = task.train.images[rows]
            if step < plain_from and hparams.shift:
                images = augmented(images, hparams.shift, hparams.mirror, generator)
            _tag(recorders, task, rows)
            _step(model, optimizer, images, task.train.labels[rows], hparams, learning_rate(step, steps, hparams.lr))
            progress(step)
        recording.close()
        seconds = perf_counter() - began
        missing = {name: everything.skipped[name] for name in layers_asked(model) if name not in recordable}
        return TrainedCnn(model, accuracy(model, task.test), seconds, runs / WHOLE, runs / LAST_EPOCH, missing)


def train_in_turn(
    tasks: Sequence[Task],
    hparams: CnnHyperparameters,
    steps: int,
    *,
    seed: int,
    runs: Path,
    progress: Progress = lambda step: None,
) -> TrainedInTurn:
    """Train on one task after the other with one optimiser, and record all layers with their values.

    Args:
        tasks: in this order.
        hparams: how to make and train the network.
        steps: on each task.
        seed: of the initial weights and the batches.
        runs: directory for the run.
        progress: called with the number of each finished step.
    """
    with _training(hparams, seed) as (model, optimizer, generator):
        recorder = dualform.record(model, optimizer, runs / IN_TURN, about=_about(hparams, tasks))
        accuracies, began, testing = [], perf_counter(), 0.0
        with _on_purpose(recorder):
            for number, task in enumerate(tasks):
                for step, rows in enumerate(epochs(len(task.train), hparams.batch, steps, generator)):
                    _tag([recorder], task, rows)
                    rate = learning_rate(step, steps, hparams.lr)
                    _step(model, optimizer, task.train.images[rows], task.train.labels[rows], hparams, rate)
                    progress(number * steps + step)
                recorder.sync()  # a snapshot of what no layer records, for views that end here
                since = perf_counter()
                accuracies.append({other.name: accuracy(model, other.test) for other in tasks})
                testing += perf_counter() - since
        return TrainedInTurn(model, accuracies, perf_counter() - began - testing, runs / IN_TURN)


@contextmanager
def _training(
    hparams: CnnHyperparameters, seed: int
) -> Iterator[tuple[nn.Sequential, torch.optim.SGD, torch.Generator]]:
    """Make a network, its optimiser and a source of random numbers; small networks use one thread."""
    model = seeded(hparams.network, seed)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=hparams.lr, momentum=hparams.momentum, nesterov=True, weight_decay=hparams.decay
    )
    with one_thread() if hparams.small else nullcontext():
        yield model, optimizer, torch.Generator().manual_seed(seed)


@contextmanager
def _on_purpose(recorder: dualform.Recorder) -> Iterator[dualform.Recorder]:
    """Record without a warning about layers that are left out: the page of results says which."""
    with ExitStack() as recording:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "dualform does not record")
            recording.enter_context(recorder)
        yield recorder


def _tag(recorders: Sequence[dualform.Recorder], task: Task, rows: Tensor) -> None:
    for recorder in recorders:
        recorder.tag(id=task.train.first_id + rows, label=task.train.labels[rows], task=task.name)


def _step(
    model: nn.Module,
    optimizer: torch.optim.SGD,
    images: Tensor,
    labels: Tensor,
    hparams: CnnHyperparameters,
    rate: float,
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = F.cross_entropy(model(images), labels, label_smoothing=hparams.smoothing)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


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
