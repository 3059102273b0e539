"""Draw the spotlight of one input: for each layer, its top training images and its attention by class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualform.plots.style import FAINT, INK, REST, caption_number, new_figure, style_axes
from dualform.plots.subject import Array, Subject, draw_image, draw_subject, set_heading
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CAPTION = (
    "Attention weight: the dot product of a layer's input now and at a moment of training. "
    "Score: the sum of the weights of all visits to a training image."
)


@dataclass(frozen=True)
class LayerRow:
    """One layer's answers to one query: a row of the spotlight figure.

    Attributes:
        layer: name of the layer.
        top: table of `top(k, per="id")`.
        images: training image of each row of `top`, (k, height, width).
        totals: table of `total(by=...)`.
    """

    layer: str
    top: Table
    images: Array
    totals: Table


def spotlight_figure(
    subject: Subject,
    rows: Sequence[LayerRow],
    by: str = "label",
    title: str = "Which training images are behind this prediction?",
) -> "Figure":
    """Draw one input, and for each layer its top training images and its attention by class.

    Args:
        subject: the test image that the figure is about.
        rows: one for each layer.
        by: column that names the class of an example.
        title: of the figure.
    """
    shown = max(len(row.top) for row in rows)
    figure = new_figure(5.4 + 1.02 * shown, 1.1 + 1.7 * len(rows))
    figure.suptitle(title, fontsize=15, fontweight="bold", color=INK)
    figure.supxlabel(_CAPTION, fontsize=8.5, color=FAINT)
    left, middle, right = figure.subfigures(1, 3, width_ratios=[2.0, 0.35 + 1.02 * shown, 3.05], squeeze=False)[0]
    draw_subject(left, subject)
    set_heading(middle, "training images with the highest attention")
    set_heading(right, "total attention per class")
    pictures = middle.subplots(len(rows), shown, squeeze=False)
    colours = subject.colours()
    for row, places, bars in zip(rows, pictures, right.subplots(len(rows), 1, squeeze=False)[:, 0], strict=True):
        places[0].set_ylabel(f"layer\n{row.layer}", fontsize=10, fontweight="bold", color=INK, labelpad=8)
        for axes, image, facts in zip(places, row.images, row.top.rows(), strict=False):
            colour = colours.get(facts[by], FAINT)
            draw_image(axes, image, colour)
            axes.set_title(f"{by} {facts[by]}", fontsize=9, fontweight="bold", color=colour, pad=3)
            # The step of several visits is that of the first.
            visits = f"{facts['visits']} visits\nfirst at " if "visits" in facts else ""
            words = f"score {caption_number(facts['score'])}\n{visits}step {facts['step']}"
            axes.set_xlabel(words, fontsize=7.5, color=INK, labelpad=2)
        for axes in places[len(row.top) :]:
            axes.set_axis_off()
        style_axes(bars)
        classes = row.totals[by].tolist()
        bars.bar(
            range(len(classes)), row.totals["total"], width=0.78, color=[colours.get(name, REST) for name in classes]
        )
        bars.set_xticks(range(len(classes)), [str(name) for name in classes])
        for name, tick in zip(classes, bars.get_xticklabels(), strict=True):
            if name in colours:
                tick.set(color=colours[name], fontweight="bold")
    return figure
