"""Small tables as the figures take them, and how to read a figure's texts."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dualform import plots
from dualform.table import Table

ONE = plots.Tasks({"digits": ("zero", "one", "two")})
TWO = plots.Tasks({"digits": ("0", "1", "2"), "clothes": ("Shirt", "Bag", "Ankle boot")})
IMAGE = np.eye(4)

RIGHT = plots.Case(IMAGE, task="digits", true=1, predicted=1, index=1234)
WRONG = plots.Case(IMAGE, task="digits", true=0, predicted=2, index=7)


def table(rows: Iterable[tuple[str, int | None, float]], value: str, **more: Sequence[Any]) -> Table:
    """Of (task, label, value)."""
    tasks, labels, values = zip(*rows, strict=True)
    columns: dict[str, Sequence[Any]] = {"task": tasks, "label": labels, value: values, **more}
    return Table(
        {"query": np.zeros(len(tasks), dtype=int)} | {name: np.array(column) for name, column in columns.items()}
    )


def totals(tasks: plots.Tasks, values: Sequence[float]) -> Table:
    return table([(*key, value) for key, value in zip(tasks.classes(), values, strict=True)], "total")


def texts(artists: Iterable[Any]) -> list[str]:
    return [artist.get_text() for artist in artists]


def everything_written(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text for text in texts(figure.findobj(Text)) if text]


def panels(figure: Any) -> list[Any]:
    """The axes that have a title on the left: one a layer."""
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def ground(text: Any) -> tuple[str, bool] | None:
    """The colour a name stands out with, and whether its ground is filled."""
    from matplotlib.colors import to_hex

    box = text.get_bbox_patch()
    if box is None:
        return None
    return to_hex(box.get_edgecolor()).upper(), to_hex(box.get_facecolor()) != "#ffffff"
