"""The spotlight figure has the right parts; what it looks like was judged by eye."""

from pathlib import Path

import numpy as np

from dualform import plots
from dualform.table import Table
from tests.plots.cases import everything_written

TOTALS = Table({"query": np.zeros(3, dtype=int), "label": np.arange(3), "total": np.array([3.0, -1.0, 2000.0])})


def top(*, visits: bool = True) -> Table:
    columns = {
        "query": np.zeros(2, dtype=int), "score": np.array([1234.5, 6.7]), "slot": np.array([4, 9]),
        "step": np.array([1, 2]), "id": np.array([40, 90]), "label": np.array([2, 0]),
    }  # fmt: skip
    return Table(columns | ({"visits": np.array([3, 1])} if visits else {}))


def row(layer: str, top_table: Table) -> plots.LayerRow:
    return plots.LayerRow(layer, top_table, np.eye(4)[None].repeat(len(top_table), axis=0), TOTALS)


def test_spotlight_figure_has_a_row_a_layer(tmp_path: Path) -> None:
    subject = plots.Subject(np.eye(4), predicted=2, true=0)
    figure = plots.spotlight_figure(subject, [row("first", top()), row("second", top(visits=False))], title="Why?")
    figure.savefig(tmp_path / "spotlight.png")
    plots.save_pages([figure], tmp_path / "spotlight.pdf")
    assert (tmp_path / "spotlight.png").stat().st_size > 0
    assert (tmp_path / "spotlight.pdf").read_bytes().startswith(b"%PDF")
    assert figure.get_suptitle() == "Why?"
    assert len(figure.axes) == 1 + 2 * (2 + 1)
    assert {axes.get_ylabel() for axes in figure.axes} == {"", "layer\nfirst", "layer\nsecond"}
    below = [axes.get_xlabel() for axes in figure.axes]
    assert below.count("score 1,234\n3 visits\nfirst at step 1") == 1
    assert below.count("score 6.7\nstep 2") == 1
    assert {"predicted: 2", "true: 0"} <= {*everything_written(figure)}


def test_totals_are_bars_in_the_order_of_the_classes() -> None:
    figure = plots.spotlight_figure(plots.Subject(np.eye(4), predicted=2, true=0), [row("first", top())])
    (axes,) = [axes for axes in figure.axes if axes.containers]
    assert [bar.get_height() for bar in axes.containers[0]] == [3.0, -1.0, 2000.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [label.get_color() for label in axes.get_xticklabels()][::2] == [plots.TRUE, plots.PREDICTED]


def test_layers_with_fewer_images_leave_their_places_empty() -> None:
    short = Table({name: column[:1] for name, column in top().as_arrays().items()})
    figure = plots.spotlight_figure(plots.Subject(np.eye(4), 1, 1), [row("a", top()), row("b", short)])
    assert sum(not axes.axison for axes in figure.axes) == 1


def test_right_and_wrong_predictions_have_colours_of_their_own() -> None:
    assert plots.Subject(np.eye(4), 1, 1).colours() == {1: plots.BOTH}
    assert plots.Subject(np.eye(4), 1, 2).colours() == {1: plots.PREDICTED, 2: plots.TRUE}
