"""Draw the heading of a figure.

    figure, body = figure_with_heading(4, "Total attention of each class", "...", case, tasks)
    axes = body.subplots(3, 1)

A heading says what the figure shows, how to read it, and which test image it is about.
"""

from typing import TYPE_CHECKING

from dualform.plots.style import FAINT, INK, SMALL, TICK, TITLE, WIDTH, make_pill, new_figure
from dualform.plots.subject import Case, Highlight, Tasks, draw_image, highlights

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

_MARGIN, _IMAGE, _LINE = 0.12, 0.8, 0.29  # inches


def figure_with_heading(
    height: float, title: str, note: str, case: Case | None = None, tasks: Tasks | None = None, width: float = WIDTH
) -> tuple["Figure", "SubFigure"]:
    """Return a figure with a heading, and its body.

    Args:
        height: of the body, in inches.
        title: what the figure shows.
        note: how to read it.
        case: the test image that it is about, if any.
        tasks: names of the case's classes; by default their labels.
        width: of the figure, in inches.
    """
    head_height = 1.5 * _MARGIN + (_IMAGE if case else 1.5 * _LINE)
    figure = new_figure(width, head_height + height)
    head, body = figure.subfigures(2, 1, height_ratios=[head_height, height], squeeze=False)[:, 0]
    page = head.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, width), ylim=(head_height, 0))  # inches from the upper left corner
    page.set_axis_off()
    left = _MARGIN if case is None else 2 * _MARGIN + _IMAGE
    page.text(left, _MARGIN, title, fontsize=TITLE, fontweight="bold", color=INK, va="top")
    page.text(left, _MARGIN + _LINE * (2 if case else 1), note, fontsize=SMALL, color=FAINT, va="top")
    if case is not None:
        box = (_MARGIN / width, _MARGIN / 2 / head_height, _IMAGE / width, _IMAGE / head_height)
        draw_image(head.add_axes(box), case.image, INK)
        words = f"test image {case.index:,} of {case.task}"
        text = page.text(left, _MARGIN + _LINE, words, fontsize=TICK, color=INK, va="top")
        labels = range(max(case.true, case.predicted) + 1)
        for words, highlight in describe_classes(case, tasks or Tasks({case.task: [str(label) for label in labels]})):
            text = page.annotate(
                words, (1, 0), (10, 0), xycoords=text, textcoords="offset points", va="bottom", fontsize=TICK
            )
            make_pill(text, highlight.colour, highlight.solid)
    return figure, body


def describe_classes(case: Case, tasks: Tasks) -> list[tuple[str, Highlight]]:
    """Return descriptions of the true and the predicted class, each with its highlight."""
    by_class = highlights(case, tasks)
    labels = {"true and predicted": case.true} if case.correct else {"true": case.true, "predicted": case.predicted}
    keys = {role: (case.task, label) for role, label in labels.items()}
    own = [(f"{role}: {tasks.name(key)}", by_class[key]) for role, key in keys.items()]
    others = [(key, highlight) for key, highlight in by_class.items() if not highlight.solid]
    return own + [(f"same output: {tasks.full_name(key)}", highlight) for key, highlight in others]
