"""Growth drawn: a row for slots, a row for widths; asking, recording and bytes side by side, on logarithmic axes.

    figure(measure(None, quick=True)).savefig("growth.png")

Dashed lines are the fits, their slopes are in the panels. A fit goes through the middle of its points.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dualform.plots.heading import figure_with_heading
from dualform.plots.style import BOTH, FAINT, INK, LABEL, PANEL, PREDICTED, REST, SMALL, TICK, TRUE, caption_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]


@dataclass(frozen=True)
class Curve:
    """A curve: its key in the measurements, name, colour and marker."""

    key: str
    words: str
    colour: str
    marker: str = "o"


@dataclass(frozen=True)
class Panel:
    """A panel: its title, unit and curves."""

    title: str
    unit: str
    scale: float
    curves: tuple[Curve, ...]


_ASKING = (Curve("first", "first", TRUE, "s"), Curve("further", "further", PREDICTED))
_TRAINING = (Curve("recorded", "recorded", PREDICTED), Curve("plain", "plain", FAINT, "s"))
_PANELS = (
    Panel("Asking", "one query (ms)", 1e3, _ASKING),
    Panel("Training", "whole run (s)", 1.0, _TRAINING),
    Panel("On disk", "whole run (MB)", 1e-6, (Curve("bytes", "all layers", BOTH),)),
)


def figure(results: dict[str, Any]) -> "Figure":
    """Draw two rows of three panels."""
    settings, growth = results["settings"], results["growth"]
    whole, body = figure_with_heading(
        5.6,
        "How time and bytes grow with slots and with the width of layers",
        "Dashed: least-squares fits; a slope of 1 is growth in proportion. "
        "Bars: from the quickest further query to the median. K is 1,024.",
    )
    named = {
        "slots": f"slots a layer (width {settings['width']})",
        "width": f"width of layers ({in_k(settings['length'])} slots)",
    }
    rows = body.subplots(2, len(_PANELS))
    for panels, (over, words) in zip(rows, named.items(), strict=True):
        for axes, panel in zip(panels, _PANELS, strict=True):
            _draw(axes, panel, growth, over)
            axes.set_xlabel(words, fontsize=LABEL, color=INK)
    for axes, panel in zip(rows[0], _PANELS, strict=True):
        axes.set_title(panel.title, loc="left", fontsize=PANEL, fontweight="bold", color=INK)
    body.align_ylabels()
    return whole


def _draw(axes: "Axes", panel: Panel, growth: dict[str, Any], over: str) -> None:
    points = growth[over]
    sizes = np.array([point[over] for point in points], dtype=float)
    axes.set(xscale="log", yscale="log")
    for curve in panel.curves:
        values = panel.scale * np.array([point[curve.key] for point in points])
        slope = growth["slopes"][over][curve.key]
        label = f"{curve.words}: slope {slope:.2f}".replace("-", "−")
        axes.plot(sizes, values, curve.marker, color=curve.colour, markersize=4.5, label=label)
        axes.plot(sizes, _fitted(sizes, values, slope), "--", color=curve.colour, linewidth=1)
        if curve.key == "further":
            usual = panel.scale * np.array([point["further_median"] for point in points])
            axes.vlines(sizes, values, usual, color=curve.colour, linewidth=2, alpha=0.5)
    _style_axes(axes, sizes)
    _explain(axes, len(panel.curves))
    axes.set_ylabel(panel.unit, fontsize=LABEL, color=INK)


def _fitted(sizes: Array, values: Array, slope: float) -> Array:
    """Return the line of least squares with a slope."""
    across = np.log(sizes)
    line: Array = np.exp(np.log(values).mean() + slope * (across - across.mean()))
    return line


def _style_axes(axes: "Axes", sizes: Array) -> None:
    """Put ticks at the measured points, and on the other axis at 1, 10, 100, or closer if these would be few."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xticks(sizes, [in_k(int(size)) if size > 9999 else f"{size:.0f}" for size in sizes])
    low, high = axes.get_ylim()
    marks = LogLocator(subs=(1.0,) if high / low > 500 else (1.0, 2.0, 5.0)).tick_values(low, high)
    kept = [mark for mark in marks if low <= mark <= high]
    axes.set_yticks(kept, [caption_number(mark) for mark in kept])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.tick_params(which="both", labelsize=TICK, length=0, labelcolor=INK)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(REST)


def _explain(axes: "Axes", curves: int) -> None:
    """Write a legend above the curves."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.13 * curves + 0.04))
    axes.legend(loc="upper left", frameon=False, fontsize=SMALL, handletextpad=0.2, borderaxespad=0.1, labelcolor=INK)


def in_k(number: int) -> str:
    """12K, 3M: in units of 1,024 and its square, or the number itself where that would not be exact."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if number and number % unit == 0:
            return f"{number // unit}{letter}"
    return f"{number:,}"
