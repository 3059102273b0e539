"""What a user may choose about the experiment with convolutional networks, and what is planned from that."""

from dataclasses import dataclass
from pathlib import Path

from dualform.datasets.images import ImageSet
from dualform.errors import UnknownName
from dualform.experiments.cases import PaperCase
from dualform.experiments.cifar.images import as_task, halves
from dualform.experiments.cifar.training import CIFAR, DIGITS, CnnHyperparameters
from dualform.experiments.loops import SLOTS
from dualform.experiments.tasks import Task

NAME = "cifar"


@dataclass(frozen=True)
class CnnDataset:
    """How networks are trained on a data set, and which of its test inputs are shown."""

    name: str
    hparams: CnnHyperparameters
    epochs: int
    steps_in_turn: int  # on each half of the classes
    cases: tuple[PaperCase, ...]


DATASETS = {
    "cifar-10": CnnDataset(
        "cifar-10", CIFAR, epochs=15, steps_in_turn=234,
        cases=(PaperCase(0, 8, ""), PaperCase(0, 7, ""), PaperCase(0, 3, "", taken_for=5)),
    ),
    "digits": CnnDataset(
        "digits", DIGITS, epochs=5, steps_in_turn=100,
        cases=(PaperCase(0, 6, ""), PaperCase(0, 8, "", taken_for=1)),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class CnnOptions:
    """What a user may choose."""

    dataset: str = "cifar-10"
    data: Path | None = None  # where the data are, if not in one of the usual places
    seeds: int = 1
    steps: int | None = None  # None: as many as the data set needs
    keep: str = SLOTS  # what is stored of a training: slots, or snapshots to make them again from
    keep_run: bool = False
    index: tuple[str, ...] = ()  # test inputs to draw instead of the planned ones


def dataset_of(options: CnnOptions) -> CnnDataset:
    """Return the data set that the user has chosen."""
    if options.dataset not in DATASETS:
        raise UnknownName("data set", options.dataset, DATASETS)
    return DATASETS[options.dataset]


@dataclass(frozen=True)
class CnnPlan:
    """The experiment with its data and the lengths of its trainings."""

    dataset: CnnDataset
    options: CnnOptions
    images: ImageSet
    task: Task  # all classes
    parts: tuple[Task, Task]  # one half of the classes, and the other
    steps: int  # on all classes
    steps_in_turn: int  # on each half

    @property
    def hparams(self) -> CnnHyperparameters:
        return self.dataset.hparams


def make_plan(options: CnnOptions, images: ImageSet) -> CnnPlan:
    """Plan the experiment: whole epochs, unless the user has chosen a number of steps.

    Args:
        options: of the user.
        images: the data set that the user has chosen.
    """
    dataset, task = dataset_of(options), as_task(images)
    steps = options.steps or dataset.epochs * (len(task.train) // dataset.hparams.batch)
    return CnnPlan(dataset, options, images, task, halves(task), steps, min(steps, dataset.steps_in_turn))
