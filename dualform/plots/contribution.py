"""Draw attention beside contribution: what a layer attends to, and what that has added to the logit.

    figure = contribution_figure(subject, LogitParts(examples, images, totals, initial))

A training example with high attention may add little to the logit, or even decrease it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dualform.plots.style import (
    FAINT,
    INK,
    LABEL,
    REST,
    SMALL,
    TICK,
    TITLE,
    axis_number,
    caption_number,
    new_figure,
    style_axes,
)
from dualform.plots.subject import Array, Subject, check_one_query, draw_image, draw_subject, set_heading
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

_CAPTION = (
    "Attention: how alike the layer's inputs are, now and when the training image was seen. Contribution: what "
    "learning from it has added to the logit. Both summed over all visits."
)
_IMAGES_PER_EXTREME = 3
_DOT_AREA, _RING_AREA = 12, 70  # square points


@dataclass(frozen=True)
class LogitParts:
    """The parts of the predicted class's logit: the initial part and the contributions add up to it.

    Attributes:
        examples: a row for each training example: attention, contribution, and its class.
        images: image of each example, (examples, height, width).
        totals: table of `contribution.total(by=...)`.
        initial: what the initial weights add to the logit.
    """

    examples: Table
    images: Array
    totals: Table
    initial: float

    @property
    def logit(self) -> float:
        """Sum of the initial part and all contributions."""
        return self.initial + float(self.totals["total"].sum())


@dataclass(frozen=True)
class _Extreme:
    """Training examples at one end of a scale: marked among the dots, with their images below."""

    sign: str
    words: str
    marker: str
    column: str
    highest: bool

    def rows(self, examples: Table) -> Array:
        """Return the rows of these examples in the table."""
        order: Array = np.argsort(examples[self.column] * (-1 if self.highest else 1), kind="stable")
        return order[:_IMAGES_PER_EXTREME]


_EXTREMES = (
    _Extreme("□", "highest attention", "s", "attention", highest=True),
    _Extreme("△", "highest contribution: for class {}", "^", "contribution", highest=True),
    _Extreme("▽", "lowest contribution: against class {}", "v", "contribution", highest=False),
)


def contribution_figure(
    subject: Subject,
    parts: LogitParts,
    by: str = "label",
    title: str = "Which training images speak for this prediction, which against?",
) -> "Figure":
    """Draw training examples by attention and contribution, and how the logit adds up, class by class.

    Args:
        subject: the test image that the figure is about.
        parts: of the logit of the predicted class.
        by: column that names the class of an example.
        title: of the figure.
    """
    check_one_query(parts.examples)
    check_one_query(parts.totals)
    figure = new_figure(11.4, 6.6)
    figure.suptitle(title, fontsize=TITLE + 2, fontweight="bold", color=INK)
    figure.supxlabel(_CAPTION, fontsize=TICK, color=FAINT)
    upper, lower = figure.subfigures(2, 1, height_ratios=[3.9, 1.9], squeeze=False)[:, 0]
    left, middle, right = upper.subfigures(1, 3, width_ratios=[2.0, 5.0, 4.4], squeeze=False)[0]
    draw_subject(left, subject)
    _draw_dots(middle, subject, parts.examples, by)
    _draw_sum(right, subject, parts, by)
    for part, extreme in zip(lower.subfigures(1, len(_EXTREMES), squeeze=False)[0], _EXTREMES, strict=True):
        set_heading(part, f"{extreme.sign} {extreme.words.format(subject.predicted)}")
        rows = extreme.rows(parts.examples)
        examples = Table({name: column[rows] for name, column in parts.examples.as_arrays().items()})
        places = part.subplots(1, _IMAGES_PER_EXTREME, squeeze=False)[0]
        for axes, image, facts in zip(places, parts.images[rows], examples.rows(), strict=False):
            colour = subject.colours().get(facts[by], FAINT)
            draw_image(axes, image, colour)
            axes.set_title(f"class {facts[by]}", fontsize=LABEL, fontweight="bold", color=colour, pad=3)
            contribution = facts["contribution"]
            digits = 3 if abs(contribution) >= 1 else 2  # as many as fit below an image
            words = f"attention {caption_number(facts['attention'])}\ncontribution {contribution:+.{digits}g}"
            axes.set_xlabel(words.replace("-", "−"), fontsize=SMALL, color=INK, labelpad=3)
        for axes in places[len(rows) :]:
            axes.set_axis_off()
    return figure


def _draw_dots(part: "SubFigure", subject: Subject, examples: Table, by: str) -> None:
    set_heading(part, "every training image is a dot")
    axes = part.add_subplot()
    style_axes(axes)
    labels, colours = examples[by], subject.colours()
    roles = ["predicted", "true"] if len(colours) > 1 else ["predicted and true"]
    groups = [("other classes", REST, ~np.isin(labels, list(colours)))]
    for role, (name, colour) in reversed(list(zip(roles, colours.items(), strict=True))):  # drawn on top of the others
        groups.append((f"class {name} ({role})", colour, labels == name))
    for words, colour, rows in groups:
        axes.scatter(
            examples["attention"][rows], examples["contribution"][rows],
            s=_DOT_AREA, color=colour, alpha=0.75, linewidths=0, label=words,
        )  # fmt: skip
    for extreme in _EXTREMES:
        rows = extreme.rows(examples)
        axes.scatter(
            examples["attention"][rows], examples["contribution"][rows],
            s=_RING_AREA, marker=extreme.marker, facecolors="none", edgecolors=INK, linewidths=0.9,
        )  # fmt: skip
    axes.xaxis.set_major_formatter(lambda value, place: axis_number(value))
    axes.set_xlabel("attention to the training image", fontsize=LABEL, color=INK)
    axes.set_ylabel(f"contribution to the logit of class {subject.predicted}", fontsize=LABEL, color=INK)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=SMALL, labelcolor=INK,
        markerscale=2, handletextpad=0.1, columnspacing=1, reverse=True,
    )  # fmt: skip


def _draw_sum(part: "SubFigure", subject: Subject, parts: LogitParts, by: str) -> None:
    """Draw the parts as bars, each beginning where the one before it ends, down to the logit."""
    set_heading(part, "contributions of each class, adding up to the logit")
    axes = part.add_subplot()
    names = parts.totals[by].tolist()
    amounts = np.array([parts.initial, *parts.totals["total"], parts.logit])
    ends = np.cumsum(amounts[:-1])
    starts = np.array([0, *ends[:-1], 0])
    colours = [subject.colours().get(name, REST) for name in names]
    axes.use_sticky_edges = False  # else the longest bar would run into the names
    axes.barh(range(len(amounts)), amounts, left=starts, height=0.72, color=[FAINT, *colours, INK])
    for row, end in enumerate(ends):
        axes.plot([end, end], [row - 0.36, row + 1.36], color=FAINT, linewidth=0.7)
    axes.set_yticks(range(len(amounts)), ["initial part", *(f"class {name}" for name in names), "logit"])
    axes.set_ylim(len(amounts) - 0.5, -0.5)
    axes.tick_params(labelsize=TICK, length=0, labelcolor=INK)
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.xaxis.set_major_formatter(lambda value, place: axis_number(value))
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.axvline(0, color=REST, linewidth=0.8)
    axes.axhline(len(amounts) - 1.5, color=INK, linewidth=0.8, xmax=1.18, clip_on=False)  # above the sum
    for row, value in enumerate(amounts):
        axes.annotate(
            f"{value:+.2f}".replace("-", "−"), (1, row), (44, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="center", fontsize=TICK, color=INK,
            fontweight="bold" if row == len(amounts) - 1 else "normal",
        )  # fmt: skip
    for tick, colour in zip(axes.get_yticklabels()[1:-1], colours, strict=True):
        if colour != REST:
            tick.set(color=colour, fontweight="bold")
