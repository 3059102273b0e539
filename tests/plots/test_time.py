"""Where top slots lie in time: counts, median, boundaries."""

from typing import Any

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from dualform import plots
from dualform.errors import QueryError
from dualform.table import Table
from tests.plots.cases import ONE, RIGHT, everything_written, panels, texts


def seen_at(*steps: int) -> Table:
    return Table({"query": np.zeros(len(steps), dtype=int), "step": np.array(steps, dtype=int)})


def stairs(axes: Any) -> list[Any]:
    return [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (60, 1), (61, 2), (130, 5), (3000, 50), (5000, 100), (6000, 100)])
def test_bars_have_round_widths(steps: int, width: int) -> None:
    (axes,) = panels(plots.top_in_time(RIGHT, {"layer-0": seen_at()}, steps=steps))
    first, second, *_ = stairs(axes)[0].edges
    assert second - first == width


def test_counts_beside_an_even_spread() -> None:
    (axes,) = panels(plots.top_in_time(RIGHT, {"layer-0": seen_at(0, 1, 2, 124, 124)}, steps=125))
    counts, even = stairs(axes)
    np.testing.assert_array_equal(counts.edges, [*range(0, 125, 5), 125])
    np.testing.assert_array_equal(counts.values, [3, *[0] * 23, 2])
    np.testing.assert_allclose(even.values, 5 * 5 / 125)


def test_a_narrow_last_bar_is_expected_to_hold_less() -> None:
    (axes,) = panels(plots.top_in_time(RIGHT, {"layer-0": seen_at(*range(121))}, steps=121))
    counts, even = stairs(axes)
    assert counts.values[-1] == 1
    np.testing.assert_allclose(even.values, counts.values)


def test_median_and_boundaries_are_marked_in_each_layer() -> None:
    tops = {"layer-0": seen_at(10, 30, 20), "layer-1": seen_at(50, 1000)}
    figure = plots.top_in_time(RIGHT, tops, steps=6000, boundaries=[3000], tasks=ONE)
    upper, lower = panels(figure)
    assert [axes.get_title(loc="left") for axes in (upper, lower)] == ["layer-0", "layer-1"]
    assert [axes.get_title(loc="right") for axes in (upper, lower)] == ["median: step 20", "median: step 525"]
    for axes, median in ((upper, 20), (lower, 525)):
        upright = [line.get_xdata()[0] for line in axes.lines if len({*line.get_xdata()}) == 1]
        assert sorted(upright) == [median, 3000]
    assert texts(upper.texts) == ["▼", "task changes"]
    assert {"training step", "visits per 100 steps", "true and predicted: one"} <= {*everything_written(figure)}


def test_classes_are_numbers_where_no_names_are_given() -> None:
    assert "true and predicted: 1" in everything_written(plots.top_in_time(RIGHT, {"layer-0": seen_at(1)}, steps=3))


def test_a_layer_without_slots_has_no_median() -> None:
    (axes,) = panels(plots.top_in_time(RIGHT, {"layer-0": seen_at()}, steps=3))
    assert axes.get_title(loc="right") == ""
    assert stairs(axes)[0].values.sum() == 0


def test_slots_after_the_end_are_refused() -> None:
    with pytest.raises(QueryError, match="has step 9, but steps=5"):
        plots.top_in_time(RIGHT, {"layer-0": seen_at(1, 9)}, steps=5)
