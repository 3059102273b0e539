"""Show results in a terminal: rich tables, bars and small pictures. Needs no torch and asks no questions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from dualform.strict_json import printable
from dualform.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from dualform.dual.certificate import Certificate
    from dualform.text import Passage

_PICTURE_WIDTH = 12  # columns, for a caption; six of them fit into 80 columns
_PIPE_WIDTH = 120  # columns: wide enough that no cell is cut


def console(stderr: bool = False) -> Console:
    """Return the console for results, or on the standard error. Names of files and layers are never read as markup."""
    terminal = Console(markup=False, highlight=False, stderr=stderr)
    return (
        terminal if terminal.is_terminal else Console(markup=False, highlight=False, width=_PIPE_WIDTH, stderr=stderr)
    )


@contextmanager
def progress(out: Console, what: str, total: int) -> "Iterator[Callable[..., None]]":
    """Show a progress bar; silent unless in a terminal.

    Args:
        out: where to show it.
        what: description of the work.
        total: number of steps.

    Yields:
        A function to be called with the number of each finished step, a note if there is one, and the number of steps
        if that is known only now.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def done(step: int, note: str = "", total: int | None = None) -> None:
            bar.update(task, completed=step + 1, total=total, description=f"{what}, {note}" if note else what)

        yield done


@contextmanager
def busy(out: Console, what: str) -> "Iterator[Callable[[str], None]]":
    """Show a spinner; silent unless in a terminal. Yields a function to be called with the name of each part."""
    if not out.is_terminal:
        yield lambda name: None
        return
    with out.status(what) as status:
        yield lambda name: status.update(f"{what}: {name}")


def facts(lines: Mapping[str, str]) -> Grid:
    """Return names and their values, one pair a line."""
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines.items():
        grid.add_row(name, value)
    return grid


def table(content: Table, title: str) -> Grid:
    """Return a table with all of its rows."""
    names = _shown_columns(content)
    grid = _grid(title)
    for name in names:
        grid.add_column(name, justify="right")
    for row in content.rows():
        grid.add_row(*(_cell(row[name]) for name in names))
    return grid


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Return cells as they are, the first column to the left and the others to the right."""
    table = _grid("")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def bars(totals: Table, title: str, width: int = 30) -> Grid:
    """Return totals by group, each with a bar; bars of negative totals are hollow."""
    names = _shown_columns(totals)
    grid = _grid(title)
    for name in names:
        grid.add_column(name, justify="right")
    grid.add_column("")
    largest = max(np.abs(totals["total"]).max(initial=0), 1e-300)
    for row in totals.rows():
        bar = ("█" if row["total"] >= 0 else "░") * round(width * abs(row["total"]) / largest)
        grid.add_row(*(_cell(row[name]) for name in names), bar)
    return grid


def _shown_columns(content: Table) -> list[str]:
    """Return all columns; that of the query only if there are several, such as the tokens of a text."""
    several = len(np.unique(content["query"])) > 1
    return [name for name in content.columns if several or name != "query"]


def side_by_side(totals: Mapping[str, Table], by: str, styles: Mapping[Any, str]) -> Grid:
    """Return totals of several layers, a row a layer and a column a group; `styles` highlights groups."""
    grid = _grid("attention per class, in thousands")
    grid.add_column("layer", style="bold", no_wrap=True)
    for group in next(iter(totals.values()))[by].tolist():
        grid.add_column(str(group), justify="right", style=styles.get(group), header_style=styles.get(group))
    for layer, content in totals.items():
        grid.add_row(layer, *(f"{total / 1000:,.0f}" for total in content["total"]))
    return grid


def addends(parts: Mapping[str, float], total: str, styles: Mapping[str, str], width: int = 30) -> Grid:
    """Return signed parts, each with a bar, hollow if negative; below a line their sum, called `total`."""
    grid = _grid("")
    grid.show_header = False
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column()
    largest = max(*map(abs, parts.values()), 1e-300)
    for name, part in parts.items():
        bar = ("█" if part >= 0 else "░") * round(width * abs(part) / largest)
        grid.add_row(name, f"{part:+,.2f}", bar, style=styles.get(name))
    amount = f"{sum(parts.values()):+,.2f}"
    grid.add_row("", "─" * len(amount))
    grid.add_row(total, amount, "the sum", style="bold")
    return grid


def certificate(result: "Certificate") -> Iterator[Any]:
    """Yield the headline, a table of parameters, and what the certificate covers."""
    yield Text(result.headline, style="bold green" if result.ok else "bold red")
    content = result.to_dict()
    if content["layers"]:
        grid = _grid("")
        for name, justify in {"parameter": "left", "relative error": "right", "": "left"}.items():
            grid.add_column(name, justify=justify)  # type: ignore[arg-type]
        for layer in [*content["layers"].values(), *([content["accounted"]] if content["accounted"] else [])]:
            for name, facts in layer["parameters"].items():
                verdict = facts["note"] or ("ok" if layer["ok"] else "layer NOT EXACT")
                grid.add_row(name, f"{facts['relative_error']:.1e}", verdict)
        yield grid
    certified = "" if result.keys_only else f"{result.steps_certified:,} of {result.steps:,} steps certified, "
    yield f"{certified}{result.steps_audited:,} audited (residual {result.worst_residual:.1e} at worst)"
    for name, share in result.moved.items():
        yield Text(f"{name} moved by {share:.1e} of its size, not by a recorded step", style="red")
    yield from (f"note: {note}" for note in result.notes)
    if result.unread:
        yield Text(f"not read: {result.unread}", style="red")


def passages(out: Console, ranked: "Sequence[Passage]", title: str) -> Grid:
    """Return passages of a text with their marks, and below each its caption."""
    from dualform.text import caption, to_plain, to_rich

    grid = _grid(title)
    grid.show_header = False
    grid.add_column(justify="right", style="bold")
    grid.add_column(overflow="fold")
    for rank, passage in enumerate(ranked, start=1):
        grid.add_row(str(rank), to_rich(passage) if out.color_system else Text(to_plain(passage)))
        grid.add_row("", Text(caption(passage), style="dim"))
    return grid


def pictures(out: Console, images: Sequence[NDArray[Any]], captions: Sequence[str]) -> Grid:
    """Return small images in a row with captions below, as many as fit into the console's width."""
    fitting = max(1, out.width // (_PICTURE_WIDTH + 1))
    grid = Grid.grid(padding=(0, 1))
    for _ in images[:fitting]:
        grid.add_column(min_width=_PICTURE_WIDTH)  # the same in every row of pictures, so that rows line up
    grid.add_row(*(half_blocks(image, out.color_system is not None) for image in images[:fitting]))
    grid.add_row(*captions[:fitting])
    return grid


def half_blocks(image: NDArray[Any], colour: bool) -> Text:
    """Return an image with two pixels a character, one above the other: in grey or, without colour, in black."""
    ink = image.astype(float) / max(image.max(), 1e-300)  # (height, width), more is darker
    if len(ink) % 2:
        ink = np.vstack([ink, np.zeros((1, ink.shape[1]))])
    text = Text()
    for row in range(0, len(ink), 2):
        for upper, lower in zip(ink[row], ink[row + 1], strict=True):
            if colour:
                text.append("▀", f"{_grey(upper)} on {_grey(lower)}")
            else:
                text.append(" ▀▄█"[(upper > 0.5) + 2 * (lower > 0.5)], "")
        text.append("\n")
    text.right_crop()
    return text


def _grey(ink: float) -> str:
    level = round(255 * (1 - ink))
    return f"rgb({level},{level},{level})"


def _grid(title: str) -> Grid:
    return Grid(title=title or None, title_justify="left", title_style="", box=None, padding=(0, 2, 0, 0))


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return printable(str(value))
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
