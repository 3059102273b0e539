"""`dualform demo`: train on handwritten digits, and show what is behind some predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.cli.app import AsJson, app
from dualform.cli.output import print_json, quiet
from dualform.errors import RunExists

if TYPE_CHECKING:
    from rich.console import Console

    from dualform.experiments.demo import DigitClassifier, ExplainedDigit

_DEMO = Path("runs/demo")
_GLOSSARY = (
    "\nAttention: how much a layer looks at a training digit. Contribution: what learning from that digit has added to "
    "the logit of a class, or taken away. The class with the highest logit is predicted."
)
_FAREWELL = """
The run is in {out}, with pictures of all this: spotlight.png, contribution.png and spotlight.pdf.

What to try next:
  dualform view {out}
  dualform verify {out}
  dualform attend {out} --index 3 --per id
  dualform attend {out} --index 3 --per id --layer output --contribution
  python
    import dualform
    from dualform.experiments.demo import network
    memory = dualform.load({name})
    memory.without(label=9).model(network())      # the network without what the nines taught it"""


@app.command(epilog="Example: dualform demo --optimizer adam --out runs/mine")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the run.")] = _DEMO,
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Optimiser: sgd, adam, adamw, nadam, radam, rmsprop, adagrad, adadelta, adafactor, adamax, asgd, "
            "muon or rprop.",
        ),
    ] = "sgd",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Training steps.")] = 1300,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small network on handwritten digits, and see what is behind its predictions. Takes seconds."""
    from dualform import terminal
    from dualform.experiments import demo as experiment

    optimizer = experiment.optimizer_name(optimizer)
    # An old demo in the default directory may be replaced.
    replaceable = overwrite or (out == _DEMO and experiment.is_demo(out))
    if out.is_dir() and any(out.iterdir()) and not replaceable:
        raise RunExists(f"{out} is not empty; choose another directory with --out, or replace a run with --overwrite")
    screen = terminal.console()
    with terminal.progress(quiet(screen, as_json), "training", steps) as done:
        result = experiment.run(out, optimizer=optimizer, steps=steps, overwrite=True, progress=done)
    if as_json:
        print_json(result.to_dict())
    else:
        accuracy = f"test accuracy {result.classifier.accuracy:.1%}"
        screen.print(f"trained by {optimizer} for {steps:,} steps, {accuracy}\n", style="bold")
        screen.print(*terminal.certificate(result.certificate), sep="\n")
        screen.print(_GLOSSARY)
        for explanation in result.explanations:
            _print_explanation(screen, explanation, result.classifier)
        screen.print(_FAREWELL.format(out=out, name=repr(str(out))))
    if not result.certificate.ok:
        raise typer.Exit(1)


def _print_explanation(out: "Console", explanation: "ExplainedDigit", classifier: "DigitClassifier") -> None:
    """Print one prediction: its attention by class, the digits behind it, and how its logit adds up."""
    from dualform import terminal
    from dualform.experiments.demo import OUTPUT, picture

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
    logit = explanation.contributions
    classes = {f"from class {row['label']}": row["total"] for row in logit.totals.rows()}
    marked = {f"from class {label}": style for label, style in styles.items()}
    out.print(f"{OUTPUT}: contributions of each class of training digits to the logit of class {logit.target}")
    out.print(terminal.addends({"initial part": logit.initial, **classes}, "logit", marked), "")
    sides = {"for": ("highest", logit.highest()), "against": ("lowest", logit.lowest())}
    for side, (end, table) in sides.items():
        images = [picture(test, explanation.index), *picture(training, table["id"])]
        below = [f"{row['label']} (id {row['id']})\n{row['contribution']:+.3g}" for row in table.rows()]
        out.print(f"{OUTPUT}: training digits that speak most {side} class {logit.target}: {end} contributions")
        out.print(terminal.pictures(out, images, ["test digit", *below]), "")
