"""Draw the training images behind a prediction, layer by layer: the top visits, and the top images.

A network is trained on each image many times, and each visit is a slot of its own. The paper ranks visits, so
that an image may appear several times; summed over all visits, it appears once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualform.plots.heading import describe_classes, figure_with_heading
from dualform.plots.style import FAINT, INK, LABEL, PALE, PANEL, SMALL, caption_number, make_pill
from dualform.plots.subject import Array, Case, Tasks, draw_image, highlights
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Widths in inches: the test image, the names of layers, a training image with its margins, between visits and sums.
_TEST, _LAYER, _IMAGE, _GAP = 1.5, 0.4, 1.15, 0.2
_ROW_HEIGHT, _MIN_HEIGHT = 1.75, 3.7  # inches: a layer, and the test image with the words below it


@dataclass(frozen=True)
class TopImages:
    """One layer's top visits and top images: a row of the figure.

    Attributes:
        layer: name of the layer.
        visits: table of `top(k)`, with columns score, step, task and label.
        visit_images: training image of each row of `visits`, (k, height, width).
        images: table of `top(k, per="id")`, with columns score, visits, task and label.
        image_images: training image of each row of `images`, (k, height, width).
    """

    layer: str
    visits: Table
    visit_images: Array
    images: Table
    image_images: Array


def top_images(case: Case, rows: Sequence[TopImages], tasks: Tasks) -> "Figure":
    """Draw the training images with the highest attention: Figures 8, 9, 13, 16, 19, 22, 25, 28 of the paper.

    Args:
        case: the test image that the figure is about.
        rows: one for each layer.
        tasks: class names of all tasks.
    """
    for row in rows:
        tasks.check_table(row.visits)
        tasks.check_table(row.images)
    counts = [max(len(row.visits) for row in rows), max(len(row.images) for row in rows)]
    widths = [_TEST, _LAYER, _IMAGE * counts[0], _GAP, _IMAGE * counts[1]]
    figure, body = figure_with_heading(
        max(_MIN_HEIGHT, _ROW_HEIGHT * len(rows) + 0.3),
        "Training images with the highest attention",
        "Weight: how much a layer attends to one visit of a training image. Sum: the weights of all its visits.",
        width=sum(widths),
    )
    left, _, middle, _, right = body.subfigures(1, 5, width_ratios=widths, squeeze=False)[0]
    draw_case(left, case, tasks)
    singles = _part(middle, "per visit (as in the paper)", len(rows), counts[0])
    sums = _part(right, "summed over all visits", len(rows), counts[1])
    right.set_facecolor(PALE)
    for row, single, summed in zip(rows, singles, sums, strict=True):
        name = single[0].annotate(
            row.layer, (0, 0.5), (-14, 0), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="center", rotation=90, fontsize=PANEL, fontweight="bold", color=INK,
        )  # fmt: skip
        name.set_in_layout(False)  # otherwise these images would be smaller than the summed ones, and not aligned
        _draw_images(single, row.visits, row.visit_images, case, tasks)
        _draw_images(summed, row.images, row.image_images, case, tasks)
    return figure


def _part(part: "SubFigure", title: str, rows: int, columns: int) -> Any:
    part.suptitle(title, fontsize=PANEL, fontweight="bold", color=INK)
    return part.subplots(rows, columns, squeeze=False)


def draw_case(part: "SubFigure", case: Case, tasks: Tasks) -> None:
    """Draw the test image, and below it its number and its classes."""
    part.suptitle("test image", fontsize=PANEL, fontweight="bold", color=INK)
    axes = part.add_subplot(anchor="N")
    draw_image(axes, case.image, INK)
    below = -8.0  # points
    for words, mark in [(f"number {case.index:,}\nof {case.task}", None), *describe_classes(case, tasks)]:
        # The column is narrow.
        lines = words.replace(": ", ":\n").replace(" (", "\n(").replace("true and ", "true and\n")
        text = axes.annotate(
            lines, (0.5, 0), (0, below), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="top", fontsize=LABEL, color=INK,
        )  # fmt: skip
        text.set_in_layout(False)  # there is space below
        if mark is not None:
            make_pill(text, mark.colour, mark.solid)
        below -= 1.3 * LABEL * (lines.count("\n") + 1) + 9


def _draw_images(places: Sequence["Axes"], table: Table, images: Array, case: Case, tasks: Tasks) -> None:
    highlighted = highlights(case, tasks)
    for axes, image, row in zip(places, images, table.rows(), strict=False):
        key = (row["task"], row["label"])
        colour = highlighted[key].colour if key in highlighted else FAINT
        draw_image(axes, image, colour)
        axes.annotate(
            tasks.name(key), (0.5, 0), (0, -3), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="top", fontsize=LABEL, fontweight="bold", color=colour,
        )  # fmt: skip
        if "visits" in row:
            visits = "1 visit" if row["visits"] == 1 else f"{row['visits']:,} visits"
            facts = f"{visits}\nsum {caption_number(row['score'])}"
        else:
            facts = f"step {row['step']:,}\nweight {caption_number(row['score'])}"
        task = f"{row['task']}\n" if tasks.several else ""
        axes.set_xlabel(task + facts, fontsize=SMALL, color=INK, labelpad=LABEL + 5)
    for axes in places[len(table) :]:
        axes.set_axis_off()
