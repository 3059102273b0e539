"""`dualform demo`: train on handwritten digits, and show what is behind some predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.cli.app import AsJson, app
from dualform.cli.output import print_json, quiet
from dualform.errors import RunExists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from dualform.experiments.demo import DigitClassifier, Explanation

_DEMO = Path("runs/demo")
_WORDS = (
    "\nAttention: how much a layer looks at a training digit. Contribution: what learning from that digit has added to "
    "the logit of a class, or taken away. The class with the highest logit is predicted."
)


@app.command(epilog="Example: dualform demo --optimizer adam --out runs/mine")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the run.")] = _DEMO,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="Optimiser: sgd, adam, adamw, nadam, radam, rmsprop or adagrad.")
    ] = "sgd",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Training steps.")] = 1300,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small network on handwritten digits, and see what is behind its predictions. Takes seconds."""
    from dualform import terminal
    from dualform.experiments import demo as experiment

    optimizer = experiment.optimizer_name(optimizer)
    _check_free(out, overwrite)
    screen = terminal.console()
    with terminal.progress(quiet(screen, as_json), "training", steps) as done:
        result = experiment.run(out, optimizer=optimizer, steps=steps, overwrite=True, progress=done)
    if as_json:
        print_json(result.to_dict())
    else:
        accuracy = f"test accuracy {result.classifier.accuracy:.1%}"
        screen.print(f"trained by {optimizer} for {steps:,} steps, {accuracy}\n", style="bold")
        screen.print(*terminal.certificate(result.certificate), sep="\n")
        screen.print(_WORDS)
        for explanation in result.explanations:
            _tell(screen, explanation, result.classifier)
        screen.print(_farewell(out))
    if not result.certificate.ok:
        raise typer.Exit(1)


def _check_free(out: Path, overwrite: bool) -> None:
    """Raise if the directory is not empty; an old demo in the default directory may be replaced."""
    from dualform.experiments.demo import is_demo

    occupied = out.is_dir() and any(out.iterdir())
    if occupied and not overwrite and not (out == _DEMO and is_demo(out)):
        raise RunExists(f"{out} is not empty; choose another directory with --out, or replace a run with --overwrite")


def _tell(out: "Console", explanation: "Explanation", classifier: "DigitClassifier") -> None:
    """Print one prediction: its attention by class, the digits behind it, and how its logit adds up."""
    from dualform import terminal
    from dualform.experiments.demo import picture

    predicted, true = explanation.predicted, explanation.true
    styles = {true: "bold red", predicted: "bold green" if predicted == true else "bold blue"}
    out.print(f"\ntest digit {explanation.index}: predicted {predicted}, true {true}", style="bold")
    out.print(terminal.side_by_side(explanation.totals, "label", styles), "")
    test, training = classifier.digits.test.raw, classifier.digits.train.raw
    for layer, top in explanation.top.items():
        images = [picture(test, explanation.index), *picture(training, top["id"])]
        below = [f"{row['label']} (id {row['id']})\n{row['score']:,.0f}\n{row['visits']} visits" for row in top.rows()]
        out.print(f"{layer}: the training digits with the highest attention")
        out.print(terminal.pictures(out, images, ["test digit", *below]), "")
    _tell_contributions(out, explanation, classifier, styles)


def _tell_contributions(
    out: "Console", explanation: "Explanation", classifier: "DigitClassifier", styles: "Mapping[int, str]"
) -> None:
    """Print how the logit of the predicted class adds up, and the digits with the highest and lowest contributions."""
    from dualform import terminal
    from dualform.experiments.demo import OUTPUT, picture

    logit = explanation.contributions
    classes = {f"from class {row['label']}": row["total"] for row in logit.totals.rows()}
    marked = {f"from class {label}": style for label, style in styles.items()}
    out.print(f"{OUTPUT}: contributions of each class of training digits to the logit of class {logit.target}")
    out.print(terminal.addends({"initial part": logit.initial, **classes}, "logit", marked), "")
    sides = {"for": ("highest", logit.highest()), "against": ("lowest", logit.lowest())}
    for side, (end, table) in sides.items():
        images = [
            picture(classifier.digits.test.raw, explanation.index),
            *picture(classifier.digits.train.raw, table["id"]),
        ]
        below = [f"{row['label']} (id {row['id']})\n{row['contribution']:+.3g}" for row in table.rows()]
        out.print(f"{OUTPUT}: training digits that speak most {side} class {logit.target}: {end} contributions")
        out.print(terminal.pictures(out, images, ["test digit", *below]), "")


def _farewell(out: Path) -> str:
    return f"""
The run is in {out}, with pictures of all this: spotlight.png, contribution.png and spotlight.pdf.

What to try next:
  dualform view {out}
  dualform verify {out}
  dualform attend {out} --index 3 --per id
  dualform attend {out} --index 3 --per id --layer output --contribution
  python
    import dualform
    from dualform.experiments.demo import network
    memory = dualform.load({str(out)!r})
    memory.without(label=9).model(network())      # the network without what the nines taught it"""
