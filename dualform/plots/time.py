"""Draw when in training the slots with the highest attention were seen."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualform.errors import QueryError
from dualform.plots.heading import figure_with_heading
from dualform.plots.style import FAINT, INK, LABEL, PANEL, SMALL, TRUE, style_axes
from dualform.plots.subject import Array, Case, Tasks, check_one_query
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BARS = 60
_FILL = "#9DB4C0"
_PAD = 10  # points between title and panel: space for the mark of the median


def top_in_time(
    case: Case, tops: Mapping[str, Table], steps: int, boundaries: Sequence[int] = (), tasks: Tasks | None = None
) -> "Figure":
    """Draw a histogram of the training steps of the top slots, layer by layer.

    Args:
        case: the test image that the figure is about.
        tops: by layer, a table of `top(500)` for one query.
        steps: number of training steps.
        boundaries: steps at which the task changed.
        tasks: names of the case's classes; by default their labels.
    """
    for top in tops.values():
        check_one_query(top)
        if len(top) and not (top["step"].min() >= 0 and top["step"].max() < steps):
            raise QueryError(
                f"the table has step {top['step'].max()}, but steps={steps}: pass the run's number of steps"
            )
    width = 1  # steps a bar: 1, 2, 5, 10, 20, 50, ...
    while width * _MAX_BARS < steps:
        power = 10 ** (len(str(width)) - 1)
        width = next(power * factor for factor in (2, 5, 10) if power * factor > width)
    edges = np.append(np.arange(0, steps, width), steps)  # the last bar may be narrower
    figure, body = figure_with_heading(
        1.35 * len(tops) + 0.45,
        "When in training were the most attended examples seen?",
        f"Of the {max(map(len, tops.values())):,} visits with the highest attention. ▼ marks the median. "
        "Dotted: visits spread evenly over training.",
        case,
        tasks,
    )
    panels = body.subplots(len(tops), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (layer, top) in zip(panels, tops.items(), strict=True):
        axes.set_title(layer, loc="left", pad=_PAD, fontsize=PANEL, fontweight="bold", color=INK)
        style_axes(axes)
        _draw_histogram(axes, top["step"], edges)
        for boundary in boundaries:
            axes.axvline(boundary, color=TRUE, linewidth=1.2, linestyle="--")
    for boundary in boundaries:
        panels[0].annotate(
            "task changes", (boundary, 1), (0, 12), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="center", va="bottom", fontsize=SMALL, color=TRUE,
        )  # fmt: skip
    panels[-1].set_xlim(0, steps)
    panels[-1].xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    body.supxlabel("training step", fontsize=LABEL, color=INK)
    body.supylabel(f"visits per {width:,} step{'s' if width > 1 else ''}", fontsize=LABEL, color=INK)
    return figure


def _draw_histogram(axes: "Axes", steps: Array, edges: Array) -> None:
    counts, _ = np.histogram(steps, edges)
    axes.stairs(counts, edges, fill=True, color=_FILL)
    even = len(steps) * np.diff(edges) / edges[-1]
    axes.stairs(even, edges, color=FAINT, linewidth=1, linestyle=":", baseline=None)
    if not len(steps):
        return
    median = float(np.median(steps))
    axes.annotate(
        "▼", (median, 1), (0, -1), xycoords=("data", "axes fraction"), textcoords="offset points",
        ha="center", va="bottom", fontsize=SMALL, color=INK,
    )  # fmt: skip
    axes.axvline(median, color=INK, linewidth=1)
    axes.set_title(f"median: step {median:,.0f}", loc="right", pad=_PAD, fontsize=LABEL, color=INK)
