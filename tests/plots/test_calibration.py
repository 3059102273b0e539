"""Predicted changes against true ones."""

import numpy as np

from dualform import plots
from tests.plots.cases import everything_written

TRUE = np.array([[0.5, -1.0], [0.0, 2.0], [1.0, 0.25]])


def test_a_panel_a_method_with_a_dot_an_output_of_a_training() -> None:
    pairs = {"contribution": (3 * TRUE, TRUE), "influence, fast": (TRUE + 0.1, TRUE)}
    figure = plots.predicted_changes(pairs, {"contribution": 0.5, "influence, fast": 0.84}, 0.05)
    axes = [one for one in figure.axes if one.collections]
    for panel, (predicted, true) in zip(axes, pairs.values(), strict=True):
        dots = np.asarray(panel.collections[0].get_offsets(), dtype=float)
        np.testing.assert_allclose(dots, np.stack([predicted.ravel(), true.ravel()], axis=1))
        line = panel.lines[-1]  # where predicted and true are the same
        assert np.asarray(line.get_data()).tolist() == [[-1.0, 2.0]] * 2
    written = " ".join(everything_written(figure))
    for words in ("rank correlation 0.50", "rank correlation 0.84", "without 5.0% of the examples", "true change"):
        assert words in written
