"""Draw attention by class: the highest weights of each class, and the total over all of its slots.

    spotlight["layer-2"].top(500, by=("task", "label"))     # for attention_per_class, one such table a layer
    spotlight["layer-2"].total(by=("task", "label"))        # for total_per_class

Each layer has a panel, and each class a place in it: all classes of the first task, then those of the second.
Colours distinguish tasks if there are several; otherwise they highlight the predicted and the true class.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualform.plots.heading import figure_with_heading
from dualform.plots.style import FAINT, INK, LABEL, PANEL, REST, SMALL, style_axes
from dualform.plots.subject import Array, Case, Key, Tasks, highlights
from dualform.plots.ticks import name_classes_below, name_tasks
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL_HEIGHT, _NAMES_HEIGHT, _TURNED_NAMES_HEIGHT = 1.5, 0.5, 1.0  # inches: a layer, and the names below the last
_CLASS_WIDTH = 0.86  # where the distance between classes is 1


def attention_per_class(case: Case, tops: Mapping[str, Table], tasks: Tasks) -> "Figure":
    """Draw the highest weights of each class in descending order: Figures 4, 6, 11, 14, 17, 20, 23, 26 of the paper.

    Args:
        case: the test image that the figure is about.
        tops: by layer, a table of `top(k, by=("task", "label"))` for one query.
        tasks: class names of all tasks.
    """
    scores: dict[str, dict[Key, Array]] = {}
    for layer, top in tops.items():
        tasks.check_table(top)
        by_class = {(task, label): top.where(task=task, label=label)["score"] for task, label in tasks.classes()}
        scores[layer] = {key: np.sort(weights)[::-1] for key, weights in by_class.items()}
    most = max(len(ranked) for groups in scores.values() for ranked in groups.values())
    figure, panels = _stacked(
        "Attention to each training class",
        f"Each hill is one class: its {most:,} highest attention weights, from the highest on the left downwards.",
        "attention weight",
        list(tops),
        case,
        tasks,
    )
    for axes, groups in zip(panels, scores.values(), strict=True):
        for place, (key, ranked) in enumerate(groups.items()):
            if not len(ranked):
                axes.text(place, 0, "none", ha="center", va="bottom", fontsize=SMALL, color=FAINT)
                continue
            edges = place - _CLASS_WIDTH / 2 + _CLASS_WIDTH * np.arange(len(ranked) + 1) / most
            axes.stairs(ranked, edges, fill=True, color=_colour(key, case, tasks), linewidth=0)
    return figure


def total_per_class(case: Case, totals: Mapping[str, Table], tasks: Tasks) -> "Figure":
    """Draw attention summed over each class: Figures 5, 7, 12, 15, 18, 21, 24, 27 of the paper.

    The largest bar of a layer is marked: it is what the layer would predict, if its attention were a classifier.

    Args:
        case: the test image that the figure is about.
        totals: by layer, a table of `total(by=("task", "label"))` for one query.
        tasks: class names of all tasks.
    """
    figure, panels = _stacked(
        "Total attention to each training class",
        "Each bar is the sum of the attention weights of all visits to the images of a class. ▼ marks the largest.",
        "sum of attention weights",
        list(totals),
        case,
        tasks,
    )
    for axes, table in zip(panels, totals.values(), strict=True):
        bars = _draw_bars(axes, table, case, tasks)
        largest = int(np.nanargmax(bars))
        axes.annotate(
            "▼", (largest, max(bars[largest], 0)), (0, 1), textcoords="offset points", ha="center", va="bottom",
            fontsize=SMALL, color=INK,
        )  # fmt: skip
        axes.margins(y=0.16)  # space for the mark
        task, label = tasks.classes()[largest]
        relation = "neither predicted nor true"
        if label == case.predicted:
            relation = "as predicted" if task == case.task else "same output as predicted"
        elif label == case.true:
            relation = "the true class" if task == case.task else "same output as the true class"
        words = f"largest: {tasks.full_name((task, label))}, {relation}"
        axes.set_title(words, loc="right", fontsize=LABEL, color=INK)
    return figure


def answers_per_class(case: Case, answers: Mapping[str, Table], tasks: Tasks) -> "Figure":
    """Draw what several methods say of each training class, a panel each: is it for or against what was predicted?

    Args:
        case: the test image that the figure is about.
        answers: by what is drawn, in words, a table with columns task, label and total for one query.
        tasks: class names of all tasks.
    """
    figure, panels = _stacked(
        "One prediction, asked about in several ways",
        "Each bar is what one way says of a class of training images. Above zero: it speaks for the predicted class.",
        "",
        list(answers),
        case,
        tasks,
    )
    for axes, table in zip(panels, answers.values(), strict=True):
        _draw_bars(axes, table, case, tasks)
    return figure


def _draw_bars(axes: "Axes", table: Table, case: Case, tasks: Tasks) -> Array:
    """Draw the total of each class, and return them; NaN where it has no slots."""
    tasks.check_table(table)
    by_class = {(row["task"], row["label"]): row["total"] for row in table.rows()}
    bars = np.array([by_class.get(key, np.nan) for key in tasks.classes()], dtype=float)
    axes.bar(range(len(bars)), bars, width=_CLASS_WIDTH, color=[_colour(key, case, tasks) for key in tasks.classes()])
    for empty in np.flatnonzero(np.isnan(bars)).tolist():
        axes.text(empty, 0, "none", ha="center", va="bottom", fontsize=SMALL, color=FAINT)
    return bars


def _colour(key: Key, case: Case, tasks: Tasks) -> str:
    if tasks.several:
        return tasks.colour(key[0])
    highlight = highlights(case, tasks).get(key)
    return highlight.colour if highlight else REST


def _stacked(
    title: str, note: str, unit: str, layers: Sequence[str], case: Case, tasks: Tasks
) -> tuple["Figure", list["Axes"]]:
    """Return a figure with a panel for each layer; class n is at x = n, and only the last panel has their names."""
    below = _TURNED_NAMES_HEIGHT if tasks.several else _NAMES_HEIGHT
    height = _PANEL_HEIGHT * len(layers) + below
    figure, body = figure_with_heading(height, title, note, case, tasks)
    panels: list[Axes] = list(body.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0])
    for axes, layer in zip(panels, layers, strict=True):
        axes.set_title(layer, loc="left", fontsize=PANEL, fontweight="bold", color=INK)
        style_axes(axes)
        for first, _ in list(tasks.spans().values())[1:]:
            axes.axvline(first - 0.5, color=REST, linewidth=0.8, linestyle="--")
    panels[-1].set_xlim(-0.6, len(tasks.classes()) - 0.4)
    name_classes_below(panels[-1], case, tasks)
    if tasks.several:
        name_tasks(panels[-1].xaxis, tasks, steepness=0.8, words="training classes of {task}")
    else:
        panels[-1].set_xlabel("class of the training images", fontsize=LABEL, color=INK, labelpad=8)
    middle = (below + _PANEL_HEIGHT * len(layers) / 2) / height  # of the panels without the names
    body.supylabel(unit, y=middle, fontsize=LABEL, color=INK)
    return figure, panels
