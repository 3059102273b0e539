"""The test inputs that figures are about, chosen by rule: the paper's cases, or those a user names.

The first test input of a class that the network gets right; or, for the digit the paper finds mistaken
for another class, the first one mistaken for just that, else the first mistaken at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.errors import QueryError, UnknownName
from dualform.experiments.tasks import Task


@dataclass(frozen=True)
class PaperCase:
    """A case of the paper: a class of one of the tasks, and what the network should make of it."""

    task: int  # number of the task
    label: int
    figures: str  # of the paper
    taken_for: int | None = None  # None: classified correctly


@dataclass(frozen=True)
class SelectedInput:
    """A test input, and what the network says of it."""

    task: Task
    index: int  # in the task's test set
    true: int
    predicted: int
    figures: str  # of the paper; empty if the user chose

    @property
    def name(self) -> str:
        """For files: `mnist-6`, `mnist-1-as-3`, `mnist-input-12`."""
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
        """As the network sees it: (pixels,)"""
        return self.task.test.images[self.index]


def select_paper_cases(
    wanted: Sequence[PaperCase], tasks: Sequence[Task], predictions: Sequence[Tensor]
) -> list[SelectedInput]:
    """The paper's cases among the test inputs; `predictions` are the network's, by task."""
    found = []
    for case in wanted:
        task, predicted = tasks[case.task], predictions[case.task]
        index = _first(case, task.test.labels, predicted)
        found.append(SelectedInput(task, index, case.label, int(predicted[index]), case.figures))
    return found


def _first(case: PaperCase, labels: Tensor, predicted: Tensor) -> int:
    """The first of its class that fits best."""
    own, right = labels == case.label, predicted == labels
    as_told = own & right if case.taken_for is None else own & (predicted == case.taken_for)
    nearly = own & right if case.taken_for is None else own & ~right
    for fitting in (as_told, nearly, own):
        if fitting.any():
            return int(torch.nonzero(fitting)[0])
    raise QueryError(f"there is no test input of class {case.label}")


def select_named(names: Sequence[str], tasks: Sequence[Task], predictions: Sequence[Tensor]) -> list[SelectedInput]:
    """Inputs a user names: `12`, or with several tasks `fashion-mnist:12`."""
    known = {task.name: number for number, task in enumerate(tasks)}
    found = []
    for name in names:
        of, _, digits = name.rpartition(":")
        if of and of not in known:
            raise UnknownName("task", of, known)
        number = known[of] if of else 0
        index = _index(digits, len(tasks[number].test))
        true, predicted = int(tasks[number].test.labels[index]), int(predictions[number][index])
        found.append(SelectedInput(tasks[number], index, true, predicted, figures=""))
    return found


def _index(digits: str, count: int) -> int:
    if not digits.isdecimal() or int(digits) >= count:
        raise QueryError(f"--index must be a number below {count:,}, or TASK:NUMBER, not {digits!r}")
    return int(digits)
