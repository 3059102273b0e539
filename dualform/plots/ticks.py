"""Names of classes and of tasks along an axis, where class number n of all tasks stands at n."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualform.plots.style import INK, LABEL, TICK, make_pill
from dualform.plots.subject import Case, Tasks, highlights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MAX_UPRIGHT_LETTERS = 3  # letters that fit under one of twenty classes without turning
_LETTER_WIDTH = 0.56 * TICK  # points: the width of a letter, on average and rather too much


def name_classes_below(axes: "Axes", case: Case, tasks: Tasks) -> None:
    """Words are turned if there are several tasks; true and predicted class stand out."""
    write_classes(axes.xaxis, tasks)
    axes.tick_params(axis="x", pad=6)  # room for the grounds of those which stand out
    for (task, label), text in zip(tasks.classes(), axes.get_xticklabels(), strict=True):
        if tasks.several and has_words(tasks.names[task]):
            text.set(rotation=40, ha="right", rotation_mode="anchor")
        if stands_out := highlights(case, tasks).get((task, label)):
            make_pill(text, stands_out.colour, stands_out.solid)


def write_classes(axis: "Axis", tasks: Tasks) -> None:
    axis.set_ticks(range(len(tasks.classes())), [tasks.name(key) for key in tasks.classes()])


def has_words(names: Sequence[str]) -> bool:
    """Whether one of the names is too long to stand upright in a narrow place."""
    return max(map(len, names)) > _MAX_UPRIGHT_LETTERS


def name_tasks(axis: "Axis", tasks: Tasks, steepness: float, words: str = "{task}") -> None:
    """In the middle of each task's classes, beyond their names, which lean away from the axis so steeply.

    1 for names that stand at right angles to the axis. Nothing if there is but one task.
    """
    if not tasks.several:
        return
    middles = [(first + end - 1) / 2 for first, end in tasks.spans().values()]
    texts = [words.format(task=task) for task in tasks.names]
    axis.remove_overlapping_locs = False  # the middle of an odd number of classes is the place of one of them
    axis.set_ticks(middles, texts, minor=True, fontsize=LABEL, fontweight="bold", color=INK)
    pad = TICK + steepness * _LETTER_WIDTH * longest_name(tasks)
    axis.set_tick_params(which="minor", length=0, pad=pad)


def longest_name(tasks: Tasks) -> int:
    return max(len(tasks.name(key)) for key in tasks.classes())
