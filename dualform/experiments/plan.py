"""The paper's image experiments, and what a user may choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from dualform.errors import QueryError, UnknownName
from dualform.experiments.cases import PaperCase
from dualform.experiments.loops import SLOTS
from dualform.experiments.tasks import Task
from dualform.experiments.training import PAPER, SMALL, ImageHyperparameters, Phase

_PIXELS = 784  # of the paper's images
DATASETS = {  # the first task, and the second where there is one
    "mnist": ("mnist", "fashion-mnist"),
    "fashion-mnist": ("fashion-mnist", "mnist"),
    "digits": ("digits", "turned-digits"),
}


@dataclass(frozen=True)
class ImageExperiment:
    """An experiment of the paper: on how many tasks, together or one after the other, and which inputs it shows."""

    name: str
    title: str
    tasks: int
    steps: tuple[int, ...]  # of each phase
    small_steps: tuple[int, ...]  # with the embedded digits
    cases: tuple[PaperCase, ...]


IMAGE_EXPERIMENTS = {
    "single": ImageExperiment(
        "single", "Single-task image classification", 1, (3000,), (400,),
        (PaperCase(0, 6, "3a, 4, 5, 8"), PaperCase(0, 3, "10a, 11, 12, 13")),
    ),
    "joint": ImageExperiment(
        "joint", "Joint training on two tasks", 2, (5000,), (600,),
        (PaperCase(1, 9, "3b, 6, 7, 9"), PaperCase(1, 3, "10b, 14, 15, 16"), PaperCase(1, 5, "10c, 17, 18, 19")),
    ),
    "continual": ImageExperiment(
        "continual", "Continual learning of two tasks", 2, (3000, 3000), (400, 400),
        (
            PaperCase(0, 1, "10d, 20, 21, 22", taken_for=3),
            PaperCase(1, 3, "10e, 23, 24, 25"),
            PaperCase(0, 7, "10f, 26, 27, 28"),
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ImageOptions:
    """What a user may choose about an image experiment."""

    dataset: str = "mnist"
    data: Path | None = None  # where the data are, if not in one of the usual places
    seeds: int = 1
    steps: int | None = None  # of each phase; None: as many as in the paper
    keep: str = SLOTS  # what is stored of a training: slots, or snapshots to make them again from
    keep_run: bool = False
    index: tuple[str, ...] = ()  # test inputs to draw instead of the paper's


@dataclass(frozen=True)
class ImagePlan:
    """An experiment with its data, hyperparameters and phases of training."""

    experiment: ImageExperiment
    options: ImageOptions
    tasks: list[Task]
    hparams: ImageHyperparameters
    phases: list[Phase]

    @property
    def widths(self) -> list[int]:
        """Widths of the network: of its input, then of each layer's output."""
        linear = [module for module in self.hparams.network() if isinstance(module, nn.Linear)]
        return [linear[0].in_features, *(module.out_features for module in linear)]

    @property
    def ends(self) -> list[int]:
        """The step at which each phase ends."""
        return [sum(phase.steps for phase in self.phases[: i + 1]) for i in range(len(self.phases))]


def names_of_tasks(experiment: ImageExperiment, dataset: str) -> tuple[str, ...]:
    """Return the names of the image sets that an experiment needs."""
    if dataset not in DATASETS:
        raise UnknownName("data set", dataset, DATASETS)
    return DATASETS[dataset][: experiment.tasks]


def hyperparameters_for(tasks: Sequence[Task]) -> ImageHyperparameters:
    """Return the paper's hyperparameters, or for small images smaller ones."""
    return SMALL if tasks[0].train.images.shape[1] < _PIXELS else PAPER


def make_phases(experiment: ImageExperiment, tasks: Sequence[Task], steps: Sequence[int]) -> list[Phase]:
    """Return the phases of a training, of so many steps each."""
    together = len(experiment.steps) < len(tasks)
    groups = [tuple(tasks)] if together else [(task,) for task in tasks]
    if len(steps) != len(groups):
        raise QueryError(f"{experiment.name} has {len(groups)} phases, not {len(steps)}: say how many steps each has")
    return [Phase(group, count) for group, count in zip(groups, steps, strict=True)]


def make_plan(experiment: ImageExperiment, options: ImageOptions, tasks: list[Task]) -> ImagePlan:
    """Plan an experiment with the paper's hyperparameters, or for small images with smaller ones."""
    hparams = hyperparameters_for(tasks)
    default_steps = experiment.small_steps if hparams.small else experiment.steps
    phases = make_phases(experiment, tasks, [options.steps or steps for steps in default_steps])
    return ImagePlan(experiment, options, tasks, hparams, phases)
