"""`dualform reproduce`: the paper's experiments, trained, recorded and set beside its numbers."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.cli.app import AsJson, app
from dualform.cli.output import print_json, quiet

if TYPE_CHECKING:
    from rich.console import Console

    from dualform.experiments.reproduce import Outcome


class Which(StrEnum):
    """The experiments, spelled out here because their module needs torch."""

    SINGLE = "single"
    JOINT = "joint"
    CONTINUAL = "continual"


@app.command(epilog="Example: dualform reproduce single --dataset digits, or, with MNIST at hand, --seeds 5 --data DIR")
def reproduce(
    experiment: Annotated[Which, typer.Argument(help="One task, two tasks at once, or one after the other.")],
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="mnist or fashion-mnist (first task; the other is second), or digits.")
    ] = "mnist",
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data are; else the usual places, else downloaded.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="How many networks to train.")] = 1,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Training steps, per task if one comes after the other.")
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(metavar="[TASK:]I", help="Draw this test input instead of the paper's; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for results; else results/EXPERIMENT.")
    ] = None,
    keep_run: Annotated[bool, typer.Option("--keep-run", help="Keep the recorded runs; gigabytes each.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train the paper's image classifiers, record them, and put its tables and figures beside ours.

    Writes results.md, results.json and index.html, with all figures as PNG and PDF.
    """
    from dualform import terminal
    from dualform.experiments import reproduce as experiments
    from dualform.experiments.plan import EXPERIMENTS, Settings
    from dualform.experiments.room import make_room

    place = out or Path("results") / experiment
    make_room(place, overwrite)
    settings = Settings(dataset, data, seeds, steps, keep_run, tuple(index or ()))
    screen = terminal.console()
    stage = partial(terminal.progress, quiet(screen, as_json))
    outcome = experiments.reproduce(EXPERIMENTS[experiment], settings, place, stage)
    if as_json:
        print_json(outcome.document)
    else:
        _tell(screen, outcome)
    if not outcome.certified:
        raise typer.Exit(1)


def _tell(out: "Console", outcome: "Outcome") -> None:
    """The tables of the page; its figures are for the browser."""
    from dualform import terminal

    for section in outcome.sections:
        if section.text or section.columns:
            out.print(f"\n{section.title}", style="bold")
        if section.text:
            out.print(section.text)
        if section.columns:
            out.print(terminal.grid(section.columns, section.rows))
    out.print(f"\nAll of this, with figures, is in {outcome.out / 'index.html'}")
