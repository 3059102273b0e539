"""Draw how the test images of each class distribute their attention over the training classes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dualform.errors import QueryError
from dualform.plots.heading import figure_with_heading
from dualform.plots.style import FAINT, INK, LABEL, PANEL, SMALL, TICK
from dualform.plots.subject import Array, Tasks
from dualform.plots.ticks import has_words, longest_name, name_tasks, write_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAP_SIZE = 3.4  # inches


def attention_matrix(matrices: Mapping[str, Array], tasks: Tasks) -> "Figure":
    """Draw the mean share of attention of each pair of classes, a map for each layer.

    Args:
        matrices: by layer, shares of shape (test classes, training classes); rows sum to 1.
        tasks: class names of all tasks.
    """
    shape = (len(tasks.classes()), len(tasks.classes()))
    for layer, matrix in matrices.items():
        if matrix.shape != shape:
            raise QueryError(f"the matrix of {layer} has shape {matrix.shape}; {shape[0]} classes need {shape}")
    names = 0.075 * longest_name(tasks)  # inches
    figure, body = figure_with_heading(
        _MAP_SIZE + names + (0.85 if tasks.several else 0.7),
        "Which training classes do the test images of a class attend to?",
        "Each row is a class of test images and adds up to 100%. A dot marks the largest share of a row.",
        width=_MAP_SIZE * len(matrices) + names + 1.6,
    )
    panels = body.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
    lowest = 100 * min(float(matrix.min()) for matrix in matrices.values())
    highest = 100 * max(float(matrix.max()) for matrix in matrices.values())
    limit = max(highest, -lowest)
    # White is 0, and negative shares have another colour.
    scale = {"cmap": "PuOr", "vmin": -limit} if lowest < 0 else {"cmap": "Blues", "vmin": 0.0}
    for axes, (layer, matrix) in zip(panels, matrices.items(), strict=True):
        # Not "equal": the layout would then ignore the names below a map. Cells are about square anyway.
        image = axes.imshow(100 * matrix, aspect="auto", interpolation="nearest", vmax=limit, **scale)
        _style_map(axes, matrix, tasks, limit)
        axes.set_title(layer, loc="left", fontsize=PANEL, fontweight="bold", color=INK)
    panels[0].set_ylabel("class of the test images", fontsize=LABEL, color=INK)
    write_classes(panels[0].yaxis, tasks)
    name_tasks(panels[0].yaxis, tasks, steepness=1)
    for text in panels[0].get_yticklabels(minor=True):
        text.set(rotation=90, va="center")
    bar = body.colorbar(image, ax=panels, shrink=0.7, pad=0.01)
    bar.set_label("mean share of attention (%)", fontsize=LABEL, color=INK)
    bar.ax.tick_params(labelsize=SMALL, length=0, labelcolor=INK)
    bar.outline.set(edgecolor=FAINT, linewidth=0.6)
    return figure


def _style_map(axes: "Axes", matrix: Array, tasks: Tasks, limit: float) -> None:
    write_classes(axes.xaxis, tasks)
    for (task, _), text in zip(tasks.classes(), axes.get_xticklabels(), strict=True):
        text.set_rotation(90 if has_words(tasks.names[task]) else 0)
    axes.tick_params(which="both", labelsize=TICK, length=0, labelcolor=INK)
    name_tasks(axes.xaxis, tasks, steepness=1)
    axes.set_xlabel("class of the training images", fontsize=LABEL, color=INK)
    axes.spines[:].set(color=FAINT, linewidth=0.6)
    for first, _ in list(tasks.spans().values())[1:]:
        axes.axhline(first - 0.5, color=INK, linewidth=1)
        axes.axvline(first - 0.5, color=INK, linewidth=1)
    largest = np.argmax(matrix, axis=1)  # (tests,)
    dark = 100 * np.abs(matrix[np.arange(len(matrix)), largest]) > limit / 2
    axes.scatter(largest, range(len(matrix)), s=7, c=np.where(dark, "white", INK), linewidths=0)
