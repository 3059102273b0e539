"""`dualform demo`: train on handwritten digits, and tell what is behind some predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.cli.app import AsJson, app
from dualform.cli.output import print_json, quiet
from dualform.errors import RunExists

if TYPE_CHECKING:
    from rich.console import Console

    from dualform.experiments.demo import Explanation, Trained

_DEMO = Path("runs/demo")


@app.command(epilog="Example: dualform demo --out runs/mine")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the run.")] = _DEMO,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Training steps.")] = 1300,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small network on handwritten digits, and see what is behind its predictions. Takes seconds."""
    from dualform import terminal
    from dualform.experiments import demo as experiment

    _check_free(out, overwrite)
    screen = terminal.console()
    with terminal.progress(quiet(screen, as_json), "training", steps) as done:
        outcome = experiment.run(out, steps=steps, overwrite=True, progress=done)
    if as_json:
        print_json(outcome.to_dict())
    else:
        screen.print(f"trained for {steps:,} steps, test accuracy {outcome.trained.accuracy:.1%}\n", style="bold")
        screen.print(*terminal.certificate(outcome.certificate), sep="\n")
        for one in outcome.explanations:
            _tell(screen, one, outcome.trained)
        screen.print(_farewell(out))
    if not outcome.certificate.ok:
        raise typer.Exit(1)


def _check_free(out: Path, overwrite: bool) -> None:
    """An old run of the demo in the demo's own place may go; any other only if told."""
    from dualform.experiments.demo import is_demo

    taken = out.is_dir() and any(out.iterdir())
    if taken and not overwrite and not (out == _DEMO and is_demo(out)):
        raise RunExists(f"{out} is not empty; choose another directory with --out, or replace a run with --overwrite")


def _tell(out: "Console", explanation: "Explanation", trained: "Trained") -> None:
    """One prediction: its attention per class, and the digits behind it."""
    from dualform import terminal
    from dualform.experiments.demo import picture

    predicted, true = explanation.predicted, explanation.true
    styles = {true: "bold red", predicted: "bold green" if predicted == true else "bold blue"}
    out.print(f"\ntest digit {explanation.index}: predicted {predicted}, true {true}", style="bold")
    out.print(terminal.side_by_side(explanation.totals, "label", styles), "")
    test, training = trained.digits.test.raw, trained.digits.train.raw
    for layer, top in explanation.top.items():
        images = [picture(test, explanation.index), *picture(training, top["id"])]
        below = [f"{row['label']} (id {row['id']})\n{row['score']:,.0f}\n{row['visits']} visits" for row in top.rows()]
        out.print(f"{layer}: the training digits with the highest attention")
        out.print(terminal.pictures(out, images, ["test digit", *below]), "")


def _farewell(out: Path) -> str:
    return f"""
The run is in {out}, pictures of all this are in {out / "spotlight.png"} and {out / "spotlight.pdf"}.

What to try next:
  dualform verify {out}
  dualform attend {out} --index 3 --per id
  python
    import dualform
    from dualform.experiments.demo import network
    memory = dualform.load({str(out)!r})
    memory.without(label=9).model(network())      # the network without what the nines taught it"""
