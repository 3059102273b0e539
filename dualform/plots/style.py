"""Colours, font sizes and axes that all figures share.

Figures belong to no window and no global state, so they can be made in any thread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dualform.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Okabe and Ito's colours, which colour-blind people can distinguish.
PREDICTED, TRUE, BOTH = "#0072B2", "#D55E00", "#009E73"
TASK_COLOURS = ("#56B4E9", "#E69F00", "#CC79A7", "#F0E442")  # none of the three above
REST, INK, FAINT, PALE = "#B8B8B8", "#222222", "#6A6A6A", "#F1F1F1"

TITLE, PANEL, LABEL, TICK, SMALL = 13, 10, 9, 8.5, 8  # points
WIDTH = 9.0  # inches: fits a laptop's screen and a printed page


def require_matplotlib() -> None:
    """Raise MissingExtra if there is no matplotlib: before the work whose results are drawn, not after it."""
    new_figure(1, 1)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure with automatic layout.

    Args:
        width: in inches.
        height: in inches.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.08)  # inches
    return Figure(figsize=(width, height), layout=layout, dpi=150)


def save_pages(figures: Sequence["Figure"], path: Path) -> None:
    """Save figures as one PDF, a page each."""
    from matplotlib.backends.backend_pdf import PdfPages

    with PdfPages(path) as pages:
        for figure in figures:
            pages.savefig(figure)


def style_axes(axes: "Axes") -> None:
    """Give axes a line at zero, few ticks and faint grid lines."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.tick_params(which="both", labelsize=TICK, length=0, labelcolor=INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: axis_number(value)))
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(REST)
    axes.axhline(0, color=REST, linewidth=0.8)


def axis_number(value: float) -> str:
    """Format a number for an axis: 250, 100k, 2.5M; but 0.5, for 500m could be read as metres or millions."""
    from matplotlib.ticker import EngFormatter

    if abs(value) < 1000:
        return f"{value:.6g}".replace("-", "−")
    return str(EngFormatter(sep="")(value))


def caption_number(value: float) -> str:
    """Format a number for a caption: 6.7, 1,234, 101,234."""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def make_pill(text: "Text", colour: str, solid: bool = True) -> None:
    """Put bold words on a coloured background or, if not solid, in a coloured frame."""
    text.set(color="white" if solid else colour, fontweight="bold")
    text.set_bbox(
        {"boxstyle": "round,pad=0.22", "facecolor": colour if solid else "white", "edgecolor": colour, "linewidth": 1}
    )
