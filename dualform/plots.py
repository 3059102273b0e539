"""Results as matplotlib figures; nothing here opens a run or asks a question.

    figure = plots.total_per_class(spotlight["layers.2"].total(by="label"))
    figure.savefig("totals.pdf")

Figures belong to no window and no global state, so they can be made anywhere, in threads too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import MissingExtra, QueryError
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Array = NDArray[Any]

# Okabe and Ito's colours, told apart by colour-blind eyes too, and light enough or dark enough in grey.
PREDICTED, TRUE, BOTH = "#0072B2", "#D55E00", "#009E73"
_REST, _INK, _FAINT = "#B8B8B8", "#222222", "#777777"
_CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


@dataclass(frozen=True)
class Subject:
    """The test input a figure is about."""

    image: Array  # (height, width), more is darker
    predicted: object  # a value of the column the totals are grouped by
    true: object

    def colours(self) -> dict[Any, str]:
        """The classes that stand out, with the colour of each."""
        if self.predicted == self.true:
            return {self.predicted: BOTH}
        return {self.predicted: PREDICTED, self.true: TRUE}


@dataclass(frozen=True)
class LayerRow:
    """One layer's answers to one query: a row of the spotlight figure."""

    layer: str
    top: Table  # of top(k, per="id")
    images: Array  # (k, height, width): the training image of each row of `top`
    totals: Table  # of total(by=...)


def require() -> None:
    """Raise now if there is no matplotlib, rather than after the work whose result is to be drawn."""
    _figure(1, 1)


def _figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.08)  # inches
    return Figure(figsize=(width, height), layout=layout, dpi=150)


def save_pages(figures: Sequence["Figure"], path: Path) -> None:
    """Several figures as one PDF, a page each."""
    from matplotlib.backends.backend_pdf import PdfPages

    with PdfPages(path) as pages:
        for figure in figures:
            pages.savefig(figure)


def attention_per_class(table: Table, by: str = "label", title: str = "Attention weights per class") -> "Figure":
    """The top weights of each class in descending order, side by side: `layer.top(500, by="label")`.

    Figure 4 of the paper.
    """
    _check_one_query(table)
    figure = _figure(7.5, 3)
    axes = figure.add_subplot()
    start, middles = 0, []
    classes = np.unique(table[by])
    for number, name in enumerate(classes):
        scores = np.sort(table["score"][table[by] == name])[::-1]
        places = np.arange(start, start + len(scores))
        axes.fill_between(places, scores, step="mid", color=_CYCLE[number % len(_CYCLE)], linewidth=0)
        middles.append(start + len(scores) / 2)
        start += len(scores) + max(1, len(table) // 100)  # a gap, so that classes do not run into each other
    axes.margins(x=0.01)
    axes.set_xticks(middles, [str(name) for name in classes])
    _dress(axes, title, xlabel=f"{by}: its highest weights, in descending order", ylabel="attention weight")
    return figure


def total_per_class(
    table: Table, by: str = "label", colours: Mapping[Any, str] | None = None, title: str = "Attention per class"
) -> "Figure":
    """Attention summed over each class: `layer.total(by="label")`; `colours` makes some classes stand out.

    Figure 5 of the paper.
    """
    _check_one_query(table)
    figure = _figure(5, 3)
    axes = figure.add_subplot()
    _bars(axes, table, by, colours or {})
    _dress(axes, title, xlabel=by, ylabel="sum of attention weights")
    return figure


def _check_one_query(table: Table) -> None:
    queries = np.unique(table["query"])
    if len(queries) > 1:
        raise QueryError(f"the table has {len(queries)} queries, a figure shows one: pass table.where(query=0)")


def _bars(axes: "Axes", totals: Table, by: str, colours: Mapping[Any, str]) -> None:
    classes = totals[by].tolist()
    axes.bar(range(len(classes)), totals["total"], width=0.78, color=[colours.get(name, _REST) for name in classes])
    axes.set_xticks(range(len(classes)), [str(name) for name in classes])
    for name, tick in zip(classes, axes.get_xticklabels(), strict=True):
        if name in colours:
            tick.set(color=colours[name], fontweight="bold")


def _dress(axes: "Axes", title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_title(title, fontsize=10, color=_INK)
    axes.set_xlabel(xlabel, fontsize=9, color=_INK)
    axes.set_ylabel(ylabel, fontsize=9, color=_INK)
    axes.tick_params(labelsize=8, length=0, labelcolor=_INK)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(_REST)
    axes.axhline(0, color=_REST, linewidth=0.8)


def spotlight_figure(
    subject: Subject,
    rows: Sequence[LayerRow],
    by: str = "label",
    title: str = "Which training images are behind this prediction?",
) -> "Figure":
    """One input, and per layer its top training images and its attention per class."""
    shown = max(len(row.top) for row in rows)
    figure = _figure(5.4 + 1.02 * shown, 1.1 + 1.7 * len(rows))
    figure.suptitle(title, fontsize=15, fontweight="bold", color=_INK)
    figure.supxlabel(_CAPTION, fontsize=8.5, color=_FAINT)
    left, middle, right = figure.subfigures(1, 3, width_ratios=[2.0, 0.35 + 1.02 * shown, 3.05], squeeze=False)[0]
    _draw_subject(left, subject)
    middle.suptitle("training images with the highest attention", fontsize=10.5, color=_INK)
    right.suptitle("total attention per class", fontsize=10.5, color=_INK)
    pictures = middle.subplots(len(rows), shown, squeeze=False)
    for row, axes, bars in zip(rows, pictures, right.subplots(len(rows), 1, squeeze=False)[:, 0], strict=True):
        _draw_row(axes, row, by, subject)
        _bars(bars, row.totals, by, subject.colours())
        _dress(bars)
    return figure


_CAPTION = (
    "Attention weight: the dot product of a layer's input now and at a moment of training. "
    "Score: the sum of the weights of all visits to a training image."
)


def _draw_subject(part: "SubFigure", subject: Subject) -> None:
    part.suptitle("test image", fontsize=10.5, color=_INK)
    axes = part.add_subplot()
    _draw_image(axes, subject.image, _INK)
    colours = subject.colours()
    axes.set_xlabel(f"predicted: {subject.predicted}", fontsize=13, fontweight="bold", labelpad=8)
    axes.xaxis.label.set_color(colours[subject.predicted])
    axes.annotate(
        f"true: {subject.true}", (0.5, 0), (0, -32), xycoords="axes fraction", textcoords="offset points",
        ha="center", va="top", fontsize=13, fontweight="bold", color=colours[subject.true],
    )  # fmt: skip


def _draw_row(pictures: Sequence["Axes"], row: LayerRow, by: str, subject: Subject) -> None:
    pictures[0].set_ylabel(f"layer\n{row.layer}", fontsize=10, fontweight="bold", color=_INK, labelpad=8)
    for axes, image, facts in zip(pictures, row.images, row.top.rows(), strict=False):
        colour = subject.colours().get(facts[by], _FAINT)
        _draw_image(axes, image, colour)
        axes.set_title(f"{by} {facts[by]}", fontsize=9, fontweight="bold", color=colour, pad=3)
        axes.set_xlabel(_facts_below(facts), fontsize=7.5, color=_INK, labelpad=2)
    for axes in pictures[len(row.top) :]:
        axes.set_axis_off()


def _facts_below(facts: Mapping[str, Any]) -> str:
    """Of one visit, or of all visits to the same training image; the step is that of the first."""
    lines = [f"score {facts['score']:,.4g}" if abs(facts["score"]) < 1000 else f"score {facts['score']:,.0f}"]
    if "visits" in facts:
        lines += [f"{facts['visits']} visits", f"first at step {facts['step']}"]
    else:
        lines.append(f"step {facts['step']}")
    return "\n".join(lines)


def _draw_image(axes: "Axes", image: Array, frame: str) -> None:
    axes.imshow(image, cmap="gray_r", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(color=frame, linewidth=2)
