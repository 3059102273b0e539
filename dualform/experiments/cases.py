"""Select the test inputs that figures are about: the paper's cases, or those that a user names.

A case of the paper is the first test input of a class that the network gets right; or, for the digit that the
paper finds mistaken for another class, the first one mistaken for that class, or else for any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.errors import QueryError, UnknownName
from dualform.experiments.tasks import Task


@dataclass(frozen=True)
class PaperCase:
    """A case of the paper: a class of one of the tasks, and how the network classifies it."""

    task: int  # number of the task
    label: int
    figures: str  # of the paper
    taken_for: int | None = None  # None: classified correctly


@dataclass(frozen=True)
class SelectedInput:
    """A test input, and what the network predicts for it."""

    task: Task
    index: int  # in the task's test set
    true: int
    predicted: int
    figures: str  # of the paper; empty if the user chose

    @property
    def name(self) -> str:
        """Name for files: `mnist-6`, `mnist-1-as-3`, `mnist-input-12`."""
        if not self.figures:
            return f"{self.task.name}-input-{self.index}"
        mistake = "" if self.true == self.predicted else f"-as-{self.predicted}"
        return f"{self.task.name}-{self.true}{mistake}"

    @property
    def title(self) -> str:
        names = self.task.class_names
        mistake = "" if self.true == self.predicted else f", taken for {names[self.predicted]}"
        return f"{self.task.name}: {names[self.true]}{mistake}"

    @property
    def image(self) -> Tensor:
        """Standardised pixels, as the network sees them, (pixels,)."""
        return self.task.test.images[self.index]


def select_paper_cases(
    cases: Sequence[PaperCase], tasks: Sequence[Task], predictions: Sequence[Tensor]
) -> list[SelectedInput]:
    """Return a test input for each of the paper's cases.

    Args:
        cases: of the paper.
        tasks: of the experiment.
        predictions: of the network, by task.
    """
    selected = []
    for case in cases:
        task, predicted = tasks[case.task], predictions[case.task]
        labels = task.test.labels
        own, right = labels == case.label, predicted == labels
        exact = own & right if case.taken_for is None else own & (predicted == case.taken_for)
        similar = own & right if case.taken_for is None else own & ~right
        if not own.any():
            raise QueryError(f"there is no test input of class {case.label}")
        fitting = next(inputs for inputs in (exact, similar, own) if inputs.any())
        index = int(torch.nonzero(fitting)[0])
        selected.append(SelectedInput(task, index, case.label, int(predicted[index]), case.figures))
    return selected


def select_named(names: Sequence[str], tasks: Sequence[Task], predictions: Sequence[Tensor]) -> list[SelectedInput]:
    """Return the test inputs that a user names.

    Args:
        names: `12`, or with several tasks `fashion-mnist:12`.
        tasks: of the experiment.
        predictions: of the network, by task.
    """
    known = {task.name: number for number, task in enumerate(tasks)}
    selected = []
    for name in names:
        task_name, _, digits = name.rpartition(":")
        if task_name and task_name not in known:
            raise UnknownName("task", task_name, known)
        number = known[task_name] if task_name else 0
        count = len(tasks[number].test)
        if not digits.isdecimal() or int(digits) >= count:
            raise QueryError(f"--index must be a number below {count:,}, or TASK:NUMBER, not {digits!r}")
        index = int(digits)
        true, predicted = int(tasks[number].test.labels[index]), int(predictions[number][index])
        selected.append(SelectedInput(tasks[number], index, true, predicted, figures=""))
    return selected
