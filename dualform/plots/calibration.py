"""Draw predicted changes of outputs against those that came about.

predicted_changes({"fast": (predicted, true)}, {"fast": 0.84}, drop=0.05)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dualform.plots.heading import figure_with_heading
from dualform.plots.style import FAINT, INK, LABEL, PANEL, PREDICTED, axis_number, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]
_PANEL_WIDTH = 2.3  # inches
_MIN_WIDTH = 6.5


def predicted_changes(
    pairs: Mapping[str, tuple[Array, Array]], correlations: Mapping[str, float], drop: float
) -> "Figure":
    """Draw a panel for each method: a dot for each output of each training without some examples.

    Args:
        pairs: predicted and true changes, (runs, outputs) each, by method.
        correlations: the mean rank correlation of each method.
        drop: the share of examples that a training was without.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure, body = figure_with_heading(
        2.6,
        "Does it predict what training without examples gives?",
        f"A dot: one output, in one training without {drop:.1%} of the examples. On the line: rightly predicted.",
        width=max(_MIN_WIDTH, _PANEL_WIDTH * len(pairs)),
    )
    axes = body.subplots(1, len(pairs), squeeze=False)[0]
    for panel, (method, (predicted, true)) in zip(axes, pairs.items(), strict=True):
        style_axes(panel)
        panel.scatter(predicted.reshape(-1), true.reshape(-1), s=5, color=PREDICTED, alpha=0.35, linewidths=0)
        ends = np.array([true.min(), true.max()])
        panel.plot(ends, ends, color=FAINT, linewidth=1)
        panel.set_title(f"{method}\nrank correlation {correlations[method]:.2f}", fontsize=PANEL, color=INK)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=3))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, place: axis_number(value)))
        panel.set_xlabel("predicted change", fontsize=LABEL, color=INK)
    axes[0].set_ylabel("true change", fontsize=LABEL, color=INK)
    return figure
