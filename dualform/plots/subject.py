"""What a figure is about: a test image, all classes, and which of these are highlighted.

    tasks = Tasks({"mnist": tuple("0123456789"), "fashion-mnist": FASHION})
    case = Case(image, task="mnist", true=1, predicted=3, index=42)
    highlights(case, tasks)[("mnist", 1)].colour      # that of a true class

Tasks share the network's outputs: predicting 3 is predicting "3" and "Dress" at once. The class of
the other task is highlighted as well, in outline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import QueryError, UnknownName
from dualform.plots.style import BOTH, INK, PANEL, PREDICTED, TASK_COLOURS, TITLE, TRUE
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

Array = NDArray[Any]
Key = tuple[str, int]  # a class: task and label


@dataclass(frozen=True)
class Subject:
    """The test image that a figure is about.

    Attributes:
        image: pixels, (height, width), where higher is darker; or (height, width, 3), red, green and blue.
        predicted: class, a value of the column that totals are grouped by.
        true: class, likewise.
    """

    image: Array
    predicted: object
    true: object

    def colours(self) -> dict[Any, str]:
        """Return the colours of the predicted and the true class."""
        if self.predicted == self.true:
            return {self.predicted: BOTH}
        return {self.predicted: PREDICTED, self.true: TRUE}


@dataclass(frozen=True)
class Case:
    """A test image of one of several tasks, and its prediction.

    Attributes:
        image: pixels, (height, width), where higher is darker; or (height, width, 3), red, green and blue.
        task: name of the task.
        true: label.
        predicted: label.
        index: row in the task's test set.
    """

    image: Array
    task: str
    true: int
    predicted: int
    index: int

    @property
    def correct(self) -> bool:
        """Whether the prediction is right."""
        return self.predicted == self.true


@dataclass(frozen=True)
class Tasks:
    """The class names of all tasks.

    Attributes:
        names: by task, the name of each label; tasks are drawn in this order.
    """

    names: Mapping[str, Sequence[str]]

    def classes(self) -> list[Key]:
        """Return task and label of all classes, one task after the other."""
        return [(task, label) for task, names in self.names.items() for label in range(len(names))]

    def name(self, key: Key) -> str:
        """Return the name of a class."""
        task, label = key
        self._check(key)
        return self.names[task][label]

    def full_name(self, key: Key) -> str:
        """Return the name of a class, with that of its task if there are several."""
        return f"{self.name(key)} ({key[0]})" if self.several else self.name(key)

    @property
    def several(self) -> bool:
        """Whether there is more than one task."""
        return len(self.names) > 1

    def colour(self, task: str) -> str:
        """Return the colour of a task."""
        return TASK_COLOURS[list(self.names).index(task) % len(TASK_COLOURS)]

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return start and end of each task in the list of all classes."""
        ends = np.cumsum([len(names) for names in self.names.values()]).tolist()
        return dict(zip(self.names, zip([0, *ends], ends, strict=False), strict=True))

    def check_table(self, table: Table) -> None:
        """Raise unless the table has one query and no other classes than these."""
        check_one_query(table)
        for key in set(zip(table["task"].tolist(), table["label"].tolist(), strict=True)):
            self._check(key)

    def _check(self, key: Key) -> None:
        task, label = key
        if task not in self.names:
            raise UnknownName("task", task, self.names)
        if label not in range(len(self.names[task])):
            raise UnknownName(f"label of {task}", label, range(len(self.names[task])))


@dataclass(frozen=True)
class Highlight:
    """How a class is highlighted."""

    colour: str
    solid: bool  # otherwise an outline: the class of another task that shares the predicted output


def highlights(case: Case, tasks: Tasks) -> dict[Key, Highlight]:
    """Return the highlighted classes: the true one, the predicted one, and those that share its output."""
    colour = BOTH if case.correct else PREDICTED
    predicted = {
        (task, case.predicted): Highlight(colour, solid=task == case.task)
        for task, names in tasks.names.items()
        if case.predicted < len(names)
    }
    return predicted if case.correct else predicted | {(case.task, case.true): Highlight(TRUE, solid=True)}


def check_one_query(table: Table) -> None:
    """Raise if a table has several queries."""
    queries = np.unique(table["query"]) if "query" in table.columns else ()
    if len(queries) > 1:
        raise QueryError(f"the table has {len(queries)} queries, a figure shows one: pass table.where(query=0)")


def draw_image(axes: "Axes", image: Array, frame: str) -> None:
    """Draw an image in a frame of the given colour."""
    axes.imshow(image, cmap="gray_r", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(color=frame, linewidth=2)


def set_heading(part: "SubFigure", words: str) -> None:
    """Write a heading above a part of a figure."""
    part.suptitle(words, fontsize=PANEL, color=INK)


def draw_subject(part: "SubFigure", subject: Subject) -> None:
    """Draw the test image, and below it the predicted and the true class."""
    set_heading(part, "test image")
    axes = part.add_subplot()
    draw_image(axes, subject.image, INK)
    for line, (role, name) in enumerate({"predicted": subject.predicted, "true": subject.true}.items()):
        axes.annotate(
            f"{role}: {name}", (0.5, 0), (0, -8 - 20 * line), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="top", fontsize=TITLE, fontweight="bold", color=subject.colours()[name],
        )  # fmt: skip
