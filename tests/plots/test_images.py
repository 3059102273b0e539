"""The top images: a row a layer, what stands below each image, and places that stay empty."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dualform import plots
from dualform.errors import QueryError
from dualform.table import Table
from tests.plots.cases import IMAGE, ONE, RIGHT, TWO, WRONG, everything_written, table, texts


def row(layer: str, visits: Sequence[tuple[str, int, float]], images: Sequence[tuple[str, int, float]]) -> Any:
    single = table(visits, "score", step=[1234 + n for n in range(len(visits))], id=range(len(visits)))
    summed = table(images, "score", visits=[n + 1 for n in range(len(images))])
    pictures = [np.arange(len(rows))[:, None, None] * IMAGE for rows in (single, summed)]
    return plots.TopImages(layer, single, pictures[0], summed, pictures[1])


def drawn(figure: Any) -> list[Any]:
    """The axes with a training image."""
    return [axes for axes in figure.axes if axes.images and axes.get_xlabel()]


def test_facts_stand_below_each_image() -> None:
    rows = [row("layer-0", [("digits", 2, 101234.0)], [("digits", 1, 6.75), ("clothes", 2, -3.0)])]
    figure = plots.top_images(WRONG, rows, TWO)
    below = [(axes.get_xlabel(), texts(axes.texts)[-1]) for axes in drawn(figure)]
    assert below == [
        ("digits\nstep 1,234\nweight 101,234", "2"),
        ("digits\n1 visit\nsum 6.75", "1"),
        ("clothes\n2 visits\nsum -3", "Ankle boot"),
    ]
    written = everything_written(figure)
    assert {"per visit (as in the paper)", "summed over all visits", "layer-0", "number 7\nof digits"} <= {*written}
    assert {"true:\n0", "predicted:\n2", "same output:\nAnkle boot\n(clothes)"} <= {*written}


def test_one_task_is_not_named_below_each_image() -> None:
    figure = plots.top_images(RIGHT, [row("layer-0", [("digits", 1, 2.0)], [("digits", 0, 3.0)])], ONE)
    assert [axes.get_xlabel() for axes in drawn(figure)] == ["step 1,234\nweight 2", "1 visit\nsum 3"]
    assert "true and\npredicted:\none" in everything_written(figure)


def test_images_are_framed_in_the_colour_of_their_class() -> None:
    rows = [("digits", 0, 3.0), ("digits", 1, 2.0), ("digits", 2, 1.0)]
    frames = [
        axes.spines["left"].get_edgecolor() for axes in drawn(plots.top_images(WRONG, [row("a", rows, rows)], ONE))
    ]
    assert [matches(frame, plots.TRUE) for frame in frames] == [True, False, False] * 2
    assert [matches(frame, plots.PREDICTED) for frame in frames] == [False, False, True] * 2


def matches(frame: Any, colour: str) -> bool:
    from matplotlib.colors import same_color

    return bool(same_color(frame, colour))


def test_every_image_is_drawn_and_the_rest_stays_empty() -> None:
    three = [("digits", 0, 3.0), ("digits", 1, 2.0), ("digits", 2, 1.0)]
    figure = plots.top_images(RIGHT, [row("layer-0", three, three), row("layer-1", three[:1], three[:2])], ONE)
    assert len(drawn(figure)) == 6 + 3
    assert sum(not axes.axison for axes in figure.axes) == 1 + 2 + 1  # the head's page, and what is missing
    np.testing.assert_array_equal(drawn(figure)[2].images[0].get_array(), 2 * IMAGE)


def test_several_queries_are_refused() -> None:
    good = row("layer-0", [("digits", 0, 3.0), ("digits", 1, 2.0)], [("digits", 1, 2.0)])
    columns = good.visits.as_arrays() | {"query": np.arange(2)}
    bad = plots.TopImages("layer-0", Table(columns), good.visit_images, good.images, good.image_images)
    with pytest.raises(QueryError, match="has 2 queries"):
        plots.top_images(RIGHT, [bad], ONE)
