"""Where attention comes from: maps over images, what stands below them, and layers without any places."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dualform import plots
from dualform.errors import QueryError
from dualform.plots.places import draw_places
from dualform.plots.style import new_figure
from tests.plots.cases import IMAGE, ONE, WRONG, everything_written, table

COLOURS = np.random.default_rng(0).integers(256, size=(4, 4, 3), dtype=np.uint8)
MAP = np.array([[1.0, -4.0], [0.0, 2.0]])


def row(layer: str, *pairs: plots.ImagePair, task: str = "digits") -> plots.PairRow:
    return plots.PairRow(layer, table([(task, 0, 1234.5 - n) for n in range(len(pairs))], "score"), pairs)


def images(figure: Any) -> list[int]:
    """How many images lie over each other in each of the axes that have any, but the test image by itself."""
    return [len(axes.images) for axes in figure.axes if axes.images]


def test_a_map_is_spread_over_the_whole_image_and_as_strong_as_its_numbers() -> None:
    axes = new_figure(1, 1).add_subplot()
    draw_places(axes, COLOURS, MAP, "black")
    below, above = axes.images
    assert np.asarray(below.get_array()).shape == (4, 4)  # without colours of its own
    assert list(above.get_extent()) == [-0.5, 3.5, 3.5, -0.5]
    colours = np.asarray(above.get_array())
    assert_allclose(colours[..., 3] / colours[0, 1, 3], np.abs(MAP) / 4)
    assert_allclose(colours[0, 0, :3], colours[1, 1, :3])
    assert np.abs(colours[0, 0, :3] - colours[0, 1, :3]).max() > 0.5  # what adds, and what takes


def test_where_all_places_add_the_least_is_not_coloured() -> None:
    axes = new_figure(1, 1).add_subplot()
    draw_places(axes, IMAGE, np.array([[10.0, 12.0], [11.0, 10.0]]), "black")
    opacity = np.asarray(axes.images[1].get_array())[..., 3]
    assert_allclose(opacity / opacity.max(), np.array([[0.0, 1.0], [0.5, 0.0]]))


def test_an_image_without_a_map_keeps_its_colours() -> None:
    axes = new_figure(1, 1).add_subplot()
    draw_places(axes, COLOURS, None, "black")
    (image,) = axes.images
    assert_allclose(np.asarray(image.get_array()), COLOURS)
    draw_places(axes, IMAGE, np.zeros((2, 2)), "black")  # nothing is divided by the largest, 0


def test_a_row_for_each_layer_and_empty_places_where_there_is_nothing() -> None:
    pair, plain = plots.ImagePair(IMAGE, MAP, MAP), plots.ImagePair(IMAGE)
    figure = plots.attended_places(WRONG, [row("conv-0", pair, pair), row("output", plain)], ONE)
    figure.canvas.draw()
    assert sorted(images(figure)) == [1, 1, 2, 2, 2, 2]
    written = everything_written(figure)
    assert {"conv-0", "output", "top 1", "top 2", "zero", "sum 1,234"} <= {*written}
    assert any("where it comes from" in words for words in written)


def test_without_any_map_there_is_nothing_about_places() -> None:
    figure = plots.attended_places(WRONG, [row("output", plots.ImagePair(COLOURS))], ONE)
    assert images(figure) == [1, 1]
    assert not any("where it comes from" in words or "agenta" in words for words in everything_written(figure))


def test_unknown_tasks_are_named() -> None:
    with pytest.raises(QueryError, match="no task 'letters'"):
        plots.attended_places(WRONG, [row("output", plots.ImagePair(IMAGE), task="letters")], ONE)
