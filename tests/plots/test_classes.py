"""Attention per class: places, heights, colours and marks."""

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from dualform import plots
from dualform.errors import QueryError, UnknownName
from dualform.plots.style import REST, TASK_COLOURS
from dualform.table import Table
from tests.plots.cases import ONE, RIGHT, TWO, WRONG, everything_written, ground, panels, table, texts, totals


def hills(axes: Any) -> list[Any]:
    from matplotlib.patches import StepPatch

    return [patch for patch in axes.patches if isinstance(patch, StepPatch)]


def colours(artists: Any) -> list[str]:
    return [to_hex(artist.get_facecolor()).upper() for artist in artists]


TOP = table(
    [("digits", 1, 1.0), ("digits", 0, 5.0), ("digits", 1, 7.0), ("digits", 2, -2.0), ("digits", 1, 3.0)], "score"
)


def test_hills_descend_and_stand_at_their_class() -> None:
    (axes,) = panels(plots.attention_per_class(RIGHT, {"layer-0": TOP}, ONE))
    assert [hill.get_data().values.tolist() for hill in hills(axes)] == [[5.0], [7.0, 3.0, 1.0], [-2.0]]
    for place, hill in enumerate(hills(axes)):
        assert place - 0.5 < hill.get_data().edges[0] < hill.get_data().edges[-1] < place + 0.5
    widths = [np.ptp(hill.get_data().edges) for hill in hills(axes)]
    np.testing.assert_allclose(np.array(widths) / widths[1], [1 / 3, 1, 1 / 3])  # few slots, a narrow hill
    assert texts(axes.get_xticklabels()) == ["zero", "one", "two"]


def test_layers_are_stacked_and_classes_named_once() -> None:
    figure = plots.attention_per_class(RIGHT, {"layer-0": TOP, "layer-1": TOP}, ONE)
    upper, lower = panels(figure)
    assert [axes.get_title(loc="left") for axes in (upper, lower)] == ["layer-0", "layer-1"]
    assert not any(label.get_visible() for label in upper.get_xticklabels())
    assert all(label.get_visible() for label in lower.get_xticklabels())
    written = everything_written(figure)
    assert "Attention to each training class" in written
    assert any("its 3 highest attention weights" in text for text in written)
    assert "class of the training images" in written
    assert "attention weight" in written


def test_slots_without_a_class_are_not_drawn_as_one() -> None:
    unlabelled = table([("digits", None, 1.0)], "total")
    with pytest.raises(UnknownName, match="no label of digits None"):
        plots.total_per_class(RIGHT, {"layer-0": unlabelled}, ONE)


def test_a_class_without_slots_keeps_its_place() -> None:
    (axes,) = panels(plots.attention_per_class(RIGHT, {"layer-0": TOP.where(label=1)}, ONE))
    assert len(hills(axes)) == 1
    assert texts(axes.texts) == ["none", "none"]
    assert texts(axes.get_xticklabels()) == ["zero", "one", "two"]


def test_one_task_has_colours_for_the_classes_that_stand_out() -> None:
    (axes,) = panels(plots.attention_per_class(WRONG, {"layer-0": TOP}, ONE))
    assert colours(hills(axes)) == [plots.TRUE, REST, plots.PREDICTED]
    assert [ground(label) for label in axes.get_xticklabels()] == [(plots.TRUE, True), None, (plots.PREDICTED, True)]
    (axes,) = panels(plots.attention_per_class(RIGHT, {"layer-0": TOP}, ONE))
    assert colours(hills(axes)) == [REST, plots.BOTH, REST]
    assert [ground(label) for label in axes.get_xticklabels()] == [None, (plots.BOTH, True), None]


def test_two_tasks_have_a_colour_each_and_share_outputs() -> None:
    (axes,) = panels(plots.total_per_class(WRONG, {"layer-0": totals(TWO, [1, 2, 3, 4, 6, 5])}, TWO))
    assert colours(axes.containers[0]) == [TASK_COLOURS[0]] * 3 + [TASK_COLOURS[1]] * 3
    labels = axes.get_xticklabels()
    assert texts(labels) == ["0", "1", "2", "Shirt", "Bag", "Ankle boot"]
    assert [label.get_rotation() for label in labels] == [0, 0, 0, 40, 40, 40]
    assert [ground(label) for label in labels] == [
        (plots.TRUE, True), None, (plots.PREDICTED, True), None, None, (plots.PREDICTED, False),
    ]  # fmt: skip
    assert texts(axes.get_xticklabels(minor=True)) == ["training classes of digits", "training classes of clothes"]


def test_the_head_says_what_became_of_the_image() -> None:
    top = {"layer-0": TOP}
    assert {"test image 1,234 of digits", "true and predicted: one"} <= {
        *everything_written(plots.attention_per_class(RIGHT, top, ONE))
    }
    assert {"true: 0", "predicted: 2", "same output: Ankle boot (clothes)"} <= {
        *everything_written(plots.attention_per_class(WRONG, top, TWO))
    }


def test_bars_are_the_totals_in_the_order_of_the_classes() -> None:
    shuffled = table([("digits", 2, 2000.0), ("digits", 0, 3.0), ("digits", 1, -1.0)], "total")
    figure = plots.total_per_class(WRONG, {"layer-0": shuffled}, ONE)
    (axes,) = panels(figure)
    assert [bar.get_height() for bar in axes.containers[0]] == [3.0, -1.0, 2000.0]
    assert "sum of attention weights" in everything_written(figure)


@pytest.mark.parametrize(
    ("values", "place", "height", "words"),
    [
        ([1.0, 5.0, 9.0], 2, 9.0, "largest: two, as predicted"),
        ([9.0, 5.0, -9.0], 0, 9.0, "largest: zero, the true class"),
        ([-3.0, -1.0, -2.0], 1, 0.0, "largest: one, neither predicted nor true"),
    ],
)
def test_the_largest_bar_of_a_layer_is_marked(values: list[float], place: int, height: float, words: str) -> None:
    (axes,) = panels(plots.total_per_class(WRONG, {"layer-0": totals(ONE, values)}, ONE))
    (mark,) = axes.texts
    assert (mark.get_text(), mark.xy) == ("▼", (place, height))
    assert axes.get_title(loc="right") == words


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (0, "largest: 0 (digits), the true class"),
        (3, "largest: Shirt (clothes), same output as the true class"),
        (4, "largest: Bag (clothes), neither predicted nor true"),
        (5, "largest: Ankle boot (clothes), same output as predicted"),
    ],
)
def test_classes_of_another_task_share_outputs(largest: int, words: str) -> None:
    values = [1.0] * 6
    values[largest] = 2.0
    (axes,) = panels(plots.total_per_class(WRONG, {"layer-0": totals(TWO, values)}, TWO))
    assert axes.get_title(loc="right") == words


def test_a_total_of_no_slots_is_no_zero() -> None:
    table = totals(ONE, [-4.0, -1.0, -2.0]).where(task="digits")
    (axes,) = panels(plots.total_per_class(WRONG, {"layer-0": table_without(table, 1)}, ONE))
    assert np.isnan(axes.containers[0][1].get_height())
    assert sorted(texts(axes.texts)) == ["none", "▼"]
    assert axes.get_title(loc="right") == "largest: two, as predicted"


def table_without(table: Table, label: int) -> Table:
    kept = table["label"] != label
    return Table({name: column[kept] for name, column in table.as_arrays().items()})


def test_large_numbers_are_short() -> None:
    (axes,) = panels(plots.total_per_class(WRONG, {"layer-0": totals(ONE, [0.0, 1e5, 4e5])}, ONE))
    assert [axes.yaxis.get_major_formatter()(value) for value in (-2.5e6, -1, 0, 0.5, 100, 4e5)] == [
        "−2.5M", "−1", "0", "0.5", "100", "400k",
    ]  # fmt: skip


@pytest.mark.parametrize("draw", [plots.total_per_class, plots.attention_per_class])
def test_several_queries_in_one_figure_are_refused(draw: Any) -> None:
    several = Table({
        "query": np.arange(3), "task": np.array(["digits"] * 3), "label": np.arange(3), "total": np.ones(3),
        "score": np.ones(3),
    })  # fmt: skip
    with pytest.raises(QueryError, match=r"has 3 queries.*table\.where"):
        draw(RIGHT, {"layer-0": several}, ONE)


def test_unknown_classes_are_refused_not_left_out() -> None:
    with pytest.raises(UnknownName, match="no task 'letters'; choose from 'digits'"):
        plots.total_per_class(RIGHT, {"layer-0": table([("letters", 0, 1.0)], "total")}, ONE)
    with pytest.raises(UnknownName, match="no label of digits 3; choose from 0, 1, 2"):
        plots.attention_per_class(RIGHT, {"layer-0": table([("digits", 3, 1.0)], "score")}, ONE)


def test_answers_have_a_panel_each_and_nothing_is_marked_as_largest() -> None:
    answers = {"attention": totals(ONE, [1.0, 2.0, 3.0]), "retraining": totals(ONE, [-1.0, 5.0, 0.5])}
    drawn = panels(plots.answers_per_class(WRONG, answers, ONE))
    assert [axes.get_title(loc="left") for axes in drawn] == ["attention", "retraining"]
    assert [[bar.get_height() for bar in axes.containers[0]] for axes in drawn] == [[1.0, 2.0, 3.0], [-1.0, 5.0, 0.5]]
    assert not any(texts(axes.texts) for axes in drawn)
