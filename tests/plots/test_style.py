"""Figures need no window, say so when there is no matplotlib, and keep all their words on the page."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dualform import plots
from dualform.errors import MissingExtra
from tests.plots.cases import IMAGE, ONE, RIGHT, TWO, WRONG, table, totals

pytestmark = pytest.mark.slow

VISITS = table([("clothes", 2, 1e5), ("digits", 0, 5.0)], "score", step=[5, 7])
IMAGES = table([("clothes", 2, 1e5), ("digits", 0, 5.0)], "score", visits=[5, 7])
PICTURES = np.stack([IMAGE, IMAGE])

FIGURES: dict[str, Callable[[], Any]] = {
    "attention": lambda: plots.attention_per_class(WRONG, {"layer-0": VISITS}, TWO),
    "totals": lambda: plots.total_per_class(WRONG, dict.fromkeys(["layer-0", "layer-1"], totals(TWO, range(6))), TWO),
    "images": lambda: plots.top_images(WRONG, [plots.TopImages("layer-0", VISITS, PICTURES, IMAGES, PICTURES)], TWO),
    "time": lambda: plots.top_in_time(WRONG, {"layer-0": VISITS}, 9, [4], TWO),
    "matrix": lambda: plots.attention_matrix({"layer-0": np.eye(6), "layer-1": np.eye(6)}, TWO),
    "accuracies": lambda: plots.accuracies({"at the end": {"digits": 100.0, "clothes": 0.0}}),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_all_that_is_written_is_on_the_page(name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = FIGURES[name]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    page = figure.bbox
    for text in figure.findobj(Text):
        if not (text.get_text() and text.get_visible()):
            continue
        box = text.get_window_extent(canvas.get_renderer())
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside, f"{text.get_text()!r} at {box} leaves {page}"


@pytest.mark.parametrize("draw", [plots.require_matplotlib, FIGURES["totals"], FIGURES["accuracies"]])
def test_missing_matplotlib_names_the_pip_command(draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dualform\[plot\]'"):
        draw()


def test_no_figure_needs_pyplot() -> None:
    code = (
        "import sys; from dualform import plots; print('matplotlib' in sys.modules);"
        "plots.accuracies({'end': {'a': 1.0}}); print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"]


def test_the_public_names_are_there() -> None:
    for name in plots.__all__:
        assert getattr(plots, name) is not None


def test_a_figure_of_one_task_is_drawn_too() -> None:
    figure = plots.total_per_class(RIGHT, {"layer-0": totals(ONE, [1, 2, 3])}, ONE)
    figure.draw_without_rendering()
    (bars,) = [axes for part in figure.subfigs for axes in part.axes if len(axes.patches) == 3]
    assert [bar.get_height() for bar in bars.containers[0]] == [1, 2, 3]
