"""The matrix of test and training classes: per cent, names, lines between tasks, the largest of each row."""

from typing import Any

import numpy as np
import pytest

from dualform import plots
from dualform.errors import QueryError
from tests.plots.cases import ONE, TWO, everything_written, panels, texts


def matrix(classes: int) -> Any:
    shares = np.ones((classes, classes)) + np.roll(np.eye(classes), 1, axis=1) * classes
    return shares / shares.sum(axis=1, keepdims=True)


def test_a_map_a_layer_in_per_cent_on_one_scale() -> None:
    figure = plots.attention_matrix({"layer-0": matrix(6), "layer-1": np.eye(6)}, TWO)
    first, second = panels(figure)
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["layer-0", "layer-1"]
    np.testing.assert_allclose(first.images[0].get_array(), 100 * matrix(6))
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 100)
    assert {"class of the test images", "class of the training images", "mean share of attention (%)"} <= {
        *everything_written(figure)
    }


def test_classes_and_tasks_are_named_along_the_sides() -> None:
    (axes,) = panels(plots.attention_matrix({"layer-0": matrix(6)}, TWO))
    names = ["0", "1", "2", "Shirt", "Bag", "Ankle boot"]
    assert texts(axes.get_xticklabels()) == texts(axes.get_yticklabels()) == names
    assert texts(axes.get_xticklabels(minor=True)) == texts(axes.get_yticklabels(minor=True)) == ["digits", "clothes"]
    assert axes.get_xticks(minor=True).tolist() == [1, 4]
    assert [label.get_rotation() for label in axes.get_xticklabels()] == [0, 0, 0, 90, 90, 90]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines] == [(0, 2.5), (2.5, 0)]


def test_one_task_needs_neither_lines_nor_its_name() -> None:
    (axes,) = panels(plots.attention_matrix({"layer-0": matrix(3)}, ONE))
    assert not axes.lines
    assert not axes.get_xticklabels(minor=True)


def test_the_largest_share_of_each_row_has_a_dot() -> None:
    (axes,) = panels(plots.attention_matrix({"layer-0": matrix(3)}, ONE))
    assert axes.collections[0].get_offsets().tolist() == [[1, 0], [2, 1], [0, 2]]


def test_negative_shares_have_a_colour_of_their_own() -> None:
    (axes,) = panels(plots.attention_matrix({"layer-0": np.array([[1.5, -0.5, 0], [0, 1, 0], [0, 0, 1]])}, ONE))
    assert axes.images[0].get_clim() == (-150, 150)


def test_a_matrix_of_other_classes_is_refused() -> None:
    with pytest.raises(QueryError, match=r"layer-0 has shape \(3, 3\); 6 classes need \(6, 6\)"):
        plots.attention_matrix({"layer-0": matrix(3)}, TWO)
