"""The training images behind a prediction, layer by layer: the best single visits, and the best images.

A network sees each training image many times, and each visit is a slot of its own. The paper ranks
visits, so that an image may come several times; summed over all visits, it comes once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualform.plots.heading import describe_classes, figure_with_heading
from dualform.plots.style import FAINT, INK, LABEL, PALE, PANEL, SMALL, caption_number, make_pill
from dualform.plots.subject import Array, Case, Key, Tasks, draw_image, highlights
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Inches across: the test image, the names of layers, a training image with its margins, and from visits to sums.
_TEST, _LAYER, _IMAGE, _GAP = 1.5, 0.4, 1.15, 0.2
_ROW, _LOWEST = 1.75, 3.7  # inches: a layer, and what the words under the test image need


@dataclass(frozen=True)
class TopImages:
    """One layer's best visits and best images: a row of the figure."""

    layer: str
    visits: Table  # of top(k): score, step, task, label
    visit_images: Array  # (k, height, width): the training image of each row of `visits`
    images: Table  # of top(k, per="id"): score, visits, task, label
    image_images: Array  # (k, height, width): that of each row of `images`


def top_images(case: Case, rows: Sequence[TopImages], tasks: Tasks) -> "Figure":
    """The training images with the highest attention: Figures 8, 9, 13, 16, 19, 22, 25 and 28 of the paper."""
    for row in rows:
        tasks.check_table(row.visits)
        tasks.check_table(row.images)
    counts = [max(len(row.visits) for row in rows), max(len(row.images) for row in rows)]
    widths = [_TEST, _LAYER, _IMAGE * counts[0], _GAP, _IMAGE * counts[1]]
    figure, body = figure_with_heading(
        max(_LOWEST, _ROW * len(rows) + 0.3),
        "Training images with the highest attention",
        "Weight: how much a layer attends to one visit of a training image. Sum: the weights of all its visits.",
        width=sum(widths),
    )
    left, _, middle, _, right = body.subfigures(1, 5, width_ratios=widths, squeeze=False)[0]
    _draw_case(left, case, tasks)
    singles = _part(middle, "per visit (as in the paper)", len(rows), counts[0])
    sums = _part(right, "summed over all visits", len(rows), counts[1])
    right.set_facecolor(PALE)
    for row, single, summed in zip(rows, singles, sums, strict=True):
        _name_layer(single[0], row.layer)
        _draw_images(single, row.visits, row.visit_images, _Caption(case, tasks, _visit))
        _draw_images(summed, row.images, row.image_images, _Caption(case, tasks, _image))
    return figure


def _part(part: "SubFigure", title: str, rows: int, columns: int) -> Any:
    part.suptitle(title, fontsize=PANEL, fontweight="bold", color=INK)
    return part.subplots(rows, columns, squeeze=False)


def _name_layer(first: "Axes", layer: str) -> None:
    name = first.annotate(
        layer, (0, 0.5), (-14, 0), xycoords="axes fraction", textcoords="offset points",
        ha="center", va="center", rotation=90, fontsize=PANEL, fontweight="bold", color=INK,
    )  # fmt: skip
    name.set_in_layout(False)  # else these images would be smaller than the summed ones, and out of line with them


def _draw_case(part: "SubFigure", case: Case, tasks: Tasks) -> None:
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
        text.set_in_layout(False)  # there is room below, whatever the layout thinks
        if mark is not None:
            make_pill(text, mark.colour, mark.solid)
        below -= 1.3 * LABEL * (lines.count("\n") + 1) + 9


def _visit(facts: Mapping[str, Any]) -> str:
    return f"step {facts['step']:,}\nweight {caption_number(facts['score'])}"


def _image(facts: Mapping[str, Any]) -> str:
    visits = "1 visit" if facts["visits"] == 1 else f"{facts['visits']:,} visits"
    return f"{visits}\nsum {caption_number(facts['score'])}"


@dataclass(frozen=True)
class _Caption:
    """What is written below an image, and in which colour."""

    case: Case
    tasks: Tasks
    facts: Callable[[Mapping[str, Any]], str]

    def write(self, axes: "Axes", row: Mapping[str, Any]) -> None:
        key = (row["task"], row["label"])
        axes.annotate(
            self.tasks.name(key), (0.5, 0), (0, -3), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="top", fontsize=LABEL, fontweight="bold", color=self.colour(key),
        )  # fmt: skip
        task = f"{row['task']}\n" if self.tasks.several else ""
        axes.set_xlabel(task + self.facts(row), fontsize=SMALL, color=INK, labelpad=LABEL + 5)

    def colour(self, key: Key) -> str:
        stands_out = highlights(self.case, self.tasks).get(key)
        return stands_out.colour if stands_out else FAINT


def _draw_images(places: Sequence["Axes"], table: Table, images: Array, caption: _Caption) -> None:
    for axes, image, row in zip(places, images, table.rows(), strict=False):
        draw_image(axes, image, caption.colour((row["task"], row["label"])))
        caption.write(axes, row)
    for axes in places[len(table) :]:
        axes.set_axis_off()
