"""Draw where in a test image, and where in training images, the attention of a layer comes from.

    pair = ImagePair(training_image, test_map, training_map)        # maps are (rows, columns) of the layer
    figure = attended_places(case, [PairRow("conv-1", table, [pair])], tasks)

A map has as many places as its layer, fewer than the image has pixels; it is spread over the whole image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dualform.plots.heading import figure_with_heading
from dualform.plots.images import draw_case
from dualform.plots.style import FAINT, INK, LABEL, PALE, PANEL, SMALL, caption_number
from dualform.plots.subject import Array, Case, Tasks, draw_image, highlights
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Widths in inches: the test image, the names of layers, an image of a pair with its margins, between two pairs.
_TEST, _LAYER, _IMAGE, _GAP = 1.5, 0.45, 1.15, 0.15
_ROW_HEIGHT, _MIN_HEIGHT, _MIN_WIDTH = 1.65, 3.7, 6.0  # inches: a layer; the test image with its words; the heading
_ADDS, _TAKES = "#E0007F", "#00A6C8"  # neither is the colour of a class
_STRONGEST = 0.7  # opacity of the place with the most attention
_NOTES = {
    True: "In pairs: the test image, and a training image that it attends to. Magenta places add most to the weight of "
    "their attention, cyan ones take from it.",
    False: "Weights are summed over all visits of a training image.",
}


@dataclass(frozen=True)
class ImagePair:
    """A training image, and where in it and in the test image the attention comes from.

    Attributes:
        image: of the training set, (height, width), or (height, width, 3) in colour.
        test_map: attention by place in the test image, (rows, columns); None: the layer has no places.
        training_map: attention by place in the training image, likewise.
    """

    image: Array
    test_map: Array | None = None
    training_map: Array | None = None


@dataclass(frozen=True)
class PairRow:
    """One layer's top training images.

    Attributes:
        layer: name of the layer.
        images: table of `top(k, per="id")`, with columns score, task and label.
        pairs: one for each row of `images`.
    """

    layer: str
    images: Table
    pairs: Sequence[ImagePair]


def attended_places(case: Case, rows: Sequence[PairRow], tasks: Tasks) -> "Figure":
    """Draw the training images with the highest attention, and beside each the test image, with the places that attend.

    Args:
        case: the test image that the figure is about.
        rows: one for each layer.
        tasks: class names of all tasks.
    """
    for row in rows:
        tasks.check_table(row.images)
    most = max(len(row.pairs) for row in rows)
    with_places = any(pair.test_map is not None for row in rows for pair in row.pairs)
    widths = [_TEST, _LAYER, *[_IMAGE * (2 if with_places else 1), _GAP] * most][:-1]
    figure, body = figure_with_heading(
        max(_MIN_HEIGHT, _ROW_HEIGHT * len(rows)),
        f"Training images with the highest attention{', and where it comes from' if with_places else ''}",
        _NOTES[with_places],
        width=max(_MIN_WIDTH, sum(widths)),
    )
    left, _, *parts = body.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    draw_case(left, case, tasks)
    for number, part in enumerate(parts[::2]):
        part.suptitle(f"top {number + 1}", fontsize=PANEL, fontweight="bold", color=INK)
        part.set_facecolor(PALE if number % 2 else "white")
        for places, row in zip(part.subplots(len(rows), 2 if with_places else 1, squeeze=False), rows, strict=True):
            if number == 0:
                name = places[0].annotate(
                    row.layer, (0, 0.5), (-14, 0), xycoords="axes fraction", textcoords="offset points",
                    ha="center", va="center", rotation=90, fontsize=PANEL, fontweight="bold", color=INK,
                )  # fmt: skip
                name.set_in_layout(False)  # otherwise these images would be smaller than the others, and not aligned
            _draw_pair(places, number, row, case, tasks)
    return figure


def _draw_pair(places: Sequence["Axes"], number: int, row: PairRow, case: Case, tasks: Tasks) -> None:
    """Draw the test image, if there is a place for it, and a training image with its class and weight."""
    *before, last = places
    pair = row.pairs[number] if number < len(row.pairs) else None
    if pair is None or pair.test_map is None:
        for axes in before:
            axes.set(xticks=[], yticks=[], frame_on=False)  # not off: the layer may be named beside it
    if pair is None:
        last.set(xticks=[], yticks=[], frame_on=False)
        return
    if before and pair.test_map is not None:
        draw_places(before[0], case.image, pair.test_map, INK)
    facts, highlighted = list(row.images.rows())[number], highlights(case, tasks)
    key = (facts["task"], facts["label"])
    colour = highlighted[key].colour if key in highlighted else FAINT
    draw_places(last, pair.image, pair.training_map, colour)
    last.annotate(
        tasks.name(key), (0.5, 0), (0, -3), xycoords="axes fraction", textcoords="offset points",
        ha="center", va="top", fontsize=LABEL, fontweight="bold", color=colour,
    )  # fmt: skip
    last.set_xlabel(f"sum {caption_number(facts['score'])}", fontsize=SMALL, color=INK, labelpad=LABEL + 5)


def draw_places(axes: "Axes", image: Array, places: Array | None, frame: str) -> None:
    """Draw an image in a frame and over it, in colour, how much each place counts.

    Args:
        axes: to draw on.
        image: (height, width), or (height, width, 3).
        places: numbers with a sign, (rows, columns); None: the image alone.
        frame: colour of the frame.
    """
    from matplotlib.colors import to_rgba

    if places is None:
        draw_image(axes, image, frame)
        return
    grey = image.mean(axis=2).max() - image.mean(axis=2) if image.ndim == 3 else image  # dark as it is, without colours
    draw_image(axes, grey, frame)
    height, width = image.shape[:2]
    # Where every place adds, most by nearly as much as any other, what tells them apart is the rest.
    sizes = np.abs(places) - max(float(places.min()), 0.0)
    colours = np.where(places[..., None] < 0, to_rgba(_TAKES), to_rgba(_ADDS))  # (rows, columns, 4)
    colours[..., 3] = _STRONGEST * sizes / (float(sizes.max()) or 1.0)
    axes.imshow(colours, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
