"""Draw accuracies of several tasks under several conditions.

    accuracies({"at the end": {"mnist": 45.1, "fashion-mnist": 85.0}, "second task muted": {...}})

The figure shows what was forgotten, and what muting brings back.
"""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

from dualform.plots.heading import figure_with_heading
from dualform.plots.style import INK, LABEL, TASK_COLOURS, TICK, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUP_WIDTH = 0.8  # of all bars of a condition, where the distance between conditions is 1


def accuracies(groups: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Draw test accuracies as grouped bars.

    Args:
        groups: accuracies in per cent, by condition and task.
    """
    tasks = list(dict.fromkeys(task for group in groups.values() for task in group))
    figure, body = figure_with_heading(
        3.2,
        "How well is each task solved?",
        "Accuracy on the test images of each task. Muted: what a task contributed is left out; nothing is retrained.",
        width=max(6.5, 1.5 + 1.6 * len(groups)),
    )
    axes = body.add_subplot()
    width = _GROUP_WIDTH / len(tasks)
    for number, task in enumerate(tasks):
        places = [place for place, group in enumerate(groups.values()) if task in group]
        heights = [group[task] for group in groups.values() if task in group]
        middles = [place + (number - (len(tasks) - 1) / 2) * width for place in places]
        colour = TASK_COLOURS[number % len(TASK_COLOURS)]
        bars = axes.bar(middles, heights, width=0.94 * width, color=colour, label=task)
        axes.bar_label(bars, fmt="{:.1f}%", fontsize=LABEL, color=INK, padding=2)
    style_axes(axes)
    axes.grid(visible=False)  # the heights are written on the bars
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 25))
    axes.set_xticks(range(len(groups)), [fill(name, 18) for name in groups])
    axes.tick_params(labelsize=LABEL)
    axes.set_ylabel("test accuracy (%)", fontsize=LABEL, color=INK)
    body.legend(loc="outside upper left", ncols=len(tasks), fontsize=TICK, frameon=False, labelcolor=INK)
    return figure
