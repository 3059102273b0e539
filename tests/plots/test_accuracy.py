"""Accuracies as grouped bars."""

from matplotlib.colors import to_hex

from dualform import plots
from dualform.plots.style import TASK_COLOURS
from tests.plots.cases import everything_written, texts

GROUPS = {"at the end": {"mnist": 45.1, "fashion": 85.0}, "second task muted": {"mnist": 97.0, "fashion": 9.96}}


def test_a_bar_a_task_in_each_group() -> None:
    figure = plots.accuracies(GROUPS)
    axes = figure.axes[-1]
    first, second = [container for container in axes.containers if len(container) == 2]
    assert [bar.get_height() for bar in first] == [45.1, 97.0]
    assert [bar.get_height() for bar in second] == [85.0, 9.96]
    assert [to_hex(bars[0].get_facecolor()).upper() for bars in (first, second)] == list(TASK_COLOURS[:2])
    assert texts(axes.texts) == ["45.1%", "97.0%", "85.0%", "10.0%"]
    assert texts(axes.get_xticklabels()) == ["at the end", "second task muted"]
    assert axes.get_ylabel() == "test accuracy (%)"
    assert {"mnist", "fashion"} <= {*everything_written(figure)}


def test_a_task_without_a_number_leaves_its_place_empty() -> None:
    axes = plots.accuracies({"a": {"x": 1.0, "y": 2.0}, "b": {"y": 3.0}}).axes[-1]
    left = [[round(bar.get_x() + bar.get_width() / 2, 3) for bar in bars] for bars in axes.containers]
    assert left == [[-0.2], [0.2, 1.2]]
