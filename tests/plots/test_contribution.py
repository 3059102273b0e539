"""The contribution figure: a dot an example, images from both ends, bars that add up. Its look was judged by eye."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import same_color

from dualform import plots
from dualform.errors import QueryError
from dualform.table import Table
from tests.plots.cases import IMAGE, everything_written, texts

pytestmark = pytest.mark.slow

LABELS = np.array([0, 2, 1, 2, 0, 1, 2, 0])
ATTENTION = np.array([10.0, 80, 30, 40, 7000, 60, 70, 20])
CONTRIBUTION = np.array([-0.5, 4, 0.25, 2, -3, 0, 1, -1])
EXAMPLES = Table({"label": LABELS, "attention": ATTENTION, "contribution": CONTRIBUTION})
TOTALS = Table({"label": np.arange(3), "total": np.array([-4.5, 0.25, 7.0])})
PICTURES = np.arange(1, 9)[:, None, None] * IMAGE


def parts(examples: Table = EXAMPLES, totals: Table = TOTALS) -> plots.LogitParts:
    return plots.LogitParts(examples, PICTURES[: len(examples)], totals, initial=1.5)


def drawn(true: int = 0, **given: Table) -> Any:
    return plots.contribution_figure(plots.Subject(IMAGE, predicted=2, true=true), parts(**given))


def dots(figure: Any) -> Any:
    (axes,) = [axes for axes in figure.axes if axes.get_legend()]
    return axes


def bars(figure: Any) -> Any:
    (axes,) = [axes for axes in figure.axes if axes.containers]
    return axes


def examples_shown(figure: Any) -> list[int]:
    """The rows of the examples whose images are drawn, in reading order."""
    pictured = [axes for axes in figure.axes if axes.images and axes.get_xlabel()]
    return [int(axes.images[0].get_array().max()) - 1 for axes in pictured]


def test_every_example_is_a_dot_in_the_colour_of_its_role() -> None:
    groups = dots(drawn()).collections[:3]
    assert [group.get_label() for group in groups] == ["other classes", "class 0 (true)", "class 2 (predicted)"]
    for group, label, colour in zip(groups, (1, 0, 2), ("#B8B8B8", plots.TRUE, plots.PREDICTED), strict=True):
        wanted = np.column_stack([ATTENTION, CONTRIBUTION])[label == LABELS]
        np.testing.assert_array_equal(group.get_offsets(), wanted)
        assert same_color(group.get_facecolor()[0, :3], colour)


def test_a_right_prediction_has_one_role() -> None:
    figure = drawn(true=2)
    assert texts(dots(figure).get_legend().get_texts()) == ["class 2 (predicted and true)", "other classes"]
    assert same_color(dots(figure).collections[1].get_facecolor()[0, :3], plots.BOTH)


def test_the_most_telling_images_are_ringed_and_drawn() -> None:
    figure = drawn()
    attended, best, worst = [4, 1, 6], [1, 3, 6], [4, 7, 0]
    assert examples_shown(figure) == [*attended, *best, *worst]
    for ring, rows in zip(dots(figure).collections[3:], (attended, best, worst), strict=True):
        np.testing.assert_array_equal(ring.get_offsets(), np.column_stack([ATTENTION, CONTRIBUTION])[rows])
    written = everything_written(figure)
    assert written.count("attention 7,000\ncontribution −3") == 2  # the most attended one speaks against
    for words in ("highest attention", "highest contribution: for class 2", "lowest contribution: against class 2"):
        assert any(text.endswith(words) for text in written)


def test_bars_begin_where_the_last_one_ended_and_end_in_the_logit() -> None:
    axes = bars(drawn())
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.containers[0]]
    assert spans == [(0, 1.5), (1.5, -3.0), (-3.0, -2.75), (-2.75, 4.25), (0, 4.25)]
    assert texts(axes.get_yticklabels()) == ["initial part", "class 0", "class 1", "class 2", "logit"]
    assert texts(axes.texts) == ["+1.50", "−4.50", "+0.25", "+7.00", "+4.25"]
    assert parts().logit == 4.25
    assert [label.get_color() for label in axes.get_yticklabels()][1:4:2] == [plots.TRUE, plots.PREDICTED]


def test_axes_say_what_they_show() -> None:
    axes = dots(drawn())
    assert axes.get_xlabel() == "attention to the training image"
    assert axes.get_ylabel() == "contribution to the logit of class 2"
    assert {"predicted: 2", "true: 0"} <= {*everything_written(drawn())}


def test_few_examples_leave_places_empty() -> None:
    figure = drawn(examples=Table({name: column[:2] for name, column in EXAMPLES.as_arrays().items()}))
    assert examples_shown(figure) == [1, 0, 1, 0, 0, 1]
    assert sum(not axes.axison for axes in figure.axes) == 3


@pytest.mark.parametrize("table", ["examples", "totals"])
def test_several_queries_are_refused(table: str) -> None:
    given = {"examples": EXAMPLES, "totals": TOTALS}[table].as_arrays()
    several = Table(given | {"query": np.arange(len(given["label"]))})
    bad = parts(**{table: several})
    with pytest.raises(QueryError, match="queries, a figure shows one"):
        plots.contribution_figure(plots.Subject(IMAGE, predicted=2, true=0), bad)


def test_all_that_is_written_is_on_the_page_and_apart() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    ten = Table({"label": np.arange(10), "total": np.linspace(-123.4, 234.5, 10)})
    figure = drawn(totals=ten)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    boxes = {text: text.get_window_extent(canvas.get_renderer()) for text in shown}
    page = figure.bbox
    for text, box in boxes.items():
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside, f"{text.get_text()!r} at {box} leaves {page}"
    for one, other in combinations(shown, 2):
        assert not boxes[one].overlaps(boxes[other]), f"{one.get_text()!r} on {other.get_text()!r}"
