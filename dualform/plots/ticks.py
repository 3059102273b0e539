"""Write the names of classes and tasks along an axis, where class n of all tasks is at n."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualform.plots.style import INK, LABEL, TICK, make_pill
from dualform.plots.subject import Case, Tasks, highlights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MAX_UPRIGHT_LETTERS = 3  # that fit below one of twenty classes without being turned
_LETTER_WIDTH = 0.56 * TICK  # points, on average and rather too much


def name_classes_below(axes: "Axes", case: Case, tasks: Tasks) -> None:
    """Write class names below axes, turned if there are several tasks; true and predicted class are highlighted."""
    write_classes(axes.xaxis, tasks)
    axes.tick_params(axis="x", pad=6)  # space for the background of highlighted names
    for (task, label), text in zip(tasks.classes(), axes.get_xticklabels(), strict=True):
        if tasks.several and has_words(tasks.names[task]):
            text.set(rotation=40, ha="right", rotation_mode="anchor")
        if highlight := highlights(case, tasks).get((task, label)):
            make_pill(text, highlight.colour, highlight.solid)


def write_classes(axis: "Axis", tasks: Tasks) -> None:
    """Write the names of all classes along an axis."""
    axis.set_ticks(range(len(tasks.classes())), [tasks.name(key) for key in tasks.classes()])


def has_words(names: Sequence[str]) -> bool:
    """Return whether one of the names is too long to be written upright."""
    return max(map(len, names)) > _MAX_UPRIGHT_LETTERS


def name_tasks(axis: "Axis", tasks: Tasks, steepness: float, words: str = "{task}") -> None:
    """Write the names of tasks along an axis, beyond the names of classes; nothing if there is only one task.

    Args:
        axis: with the names of classes.
        tasks: whose names are written, each in the middle of its classes.
        steepness: of the names of classes, 1 if they are at right angles to the axis.
        words: format of a task's name.
    """
    if not tasks.several:
        return
    middles = [(first + end - 1) / 2 for first, end in tasks.spans().values()]
    texts = [words.format(task=task) for task in tasks.names]
    axis.remove_overlapping_locs = False  # the middle of an odd number of classes is at one of them
    axis.set_ticks(middles, texts, minor=True, fontsize=LABEL, fontweight="bold", color=INK)
    pad = TICK + steepness * _LETTER_WIDTH * longest_name(tasks)
    axis.set_tick_params(which="minor", length=0, pad=pad)


def longest_name(tasks: Tasks) -> int:
    """Return the number of letters of the longest class name."""
    return max(len(tasks.name(key)) for key in tasks.classes())
