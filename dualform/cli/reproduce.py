"""`dualform reproduce`: train and record the paper's experiments, and compare with its numbers."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.cli.app import AsJson, app
from dualform.cli.output import print_json, quiet

if TYPE_CHECKING:
    from rich.console import Console

    from dualform.experiments.outcome import Outcome, Stage

reproduce = typer.Typer(
    no_args_is_help=True, help="Reproduce the paper's experiments, with its numbers beside ours.",
    epilog="Begin with: dualform reproduce single --dataset digits, or dualform reproduce charlm",
)  # fmt: skip
app.add_typer(reproduce, name="reproduce")

Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where to look for the data first; they are downloaded if not found.")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory for results; default: results/EXPERIMENT.")]
Seeds = Annotated[int, typer.Option(metavar="N", min=1, help="How many networks to train.")]


class Kept(StrEnum):
    """What is stored of a training."""

    slots = "slots"
    snapshots = "snapshots"


Keep = Annotated[
    Kept,
    typer.Option(
        help="What is stored of a training: its slots, gigabytes, or snapshots, a few megabytes, from which slots are "
        "made again for each question."
    ),
]
KeepRun = Annotated[
    bool, typer.Option("--keep-run", help="Keep the recorded runs, in DIR/runs, to ask them more later.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")]

_IMAGES = {  # spelled out here because their module needs torch
    "single": "One task: Table 1, and the figures of attention per class.",
    "joint": "Two tasks at once, with one output for both.",
    "continual": "Two tasks, one after the other: what is forgotten, and what brings it back.",
}
_CIFAR = "A convolutional network, beyond the paper: training images behind a prediction, and where they are looked at."
_LANGUAGE = {
    "charlm": "A language model of characters: passages of its training text behind a prompt.",
    "wordlm": "A language model of words: passages of its training text behind a prompt.",
}


def _image_command(name: str, summary: str) -> Callable[..., None]:
    def command(
        dataset: Annotated[
            str,
            typer.Option(metavar="NAME", help="mnist or fashion-mnist (first task; the other is second), or digits."),
        ] = "mnist",
        data: Data = None,
        seeds: Seeds = 1,
        steps: Annotated[
            int | None, typer.Option(metavar="N", min=1, help="Training steps, per task if one comes after the other.")
        ] = None,
        index: Annotated[
            list[str] | None,
            typer.Option(metavar="[TASK:]I", help="Draw this test input instead of the paper's; repeatable."),
        ] = None,
        out: Out = None,
        keep: Keep = Kept.slots,
        keep_run: KeepRun = False,
        overwrite: Overwrite = False,
        as_json: AsJson = False,
    ) -> None:
        from dualform.experiments import reproduce as experiments
        from dualform.experiments.plan import IMAGE_EXPERIMENTS, ImageOptions

        place, screen, stage = _begin(name, out, overwrite, as_json)
        options = ImageOptions(dataset, data, seeds, steps, keep.value, keep_run, tuple(index or ()))
        outcome = experiments.reproduce(IMAGE_EXPERIMENTS[name], options, place, stage)
        _print_results(screen, outcome, as_json)
        if not outcome.certified:
            raise typer.Exit(1)

    command.__doc__ = f"""{summary}

    Trains the paper's networks, records and certifies them. Writes results.md, results.json and index.html, with
    all figures as PNG and PDF.
    """
    return command


def _cifar_command(
    dataset: Annotated[str, typer.Option(metavar="NAME", help="cifar-10, or digits (no download).")] = "cifar-10",
    data: Data = None,
    seeds: Seeds = 1,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Training steps; default: depends on the data set.")
    ] = None,
    index: Annotated[
        list[str] | None, typer.Option(metavar="I", help="Draw this test input instead; repeatable.")
    ] = None,
    out: Out = None,
    keep: Keep = Kept.slots,
    keep_run: KeepRun = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    from dualform.experiments.cifar.plan import CnnOptions
    from dualform.experiments.cifar.reproduce import reproduce as run

    place, screen, stage = _begin("cifar", out, overwrite, as_json)
    outcome = run(CnnOptions(dataset, data, seeds, steps, keep.value, keep_run, tuple(index or ())), place, stage)
    _print_results(screen, outcome, as_json)
    if not outcome.certified:
        raise typer.Exit(1)


_cifar_command.__doc__ = f"""{_CIFAR}

    Trains networks on all classes, and on one half of them after the other; records, certifies and asks them. Writes
    results.md, results.json and index.html, with all figures as PNG and PDF.
    """


Corpus = Annotated[
    str, typer.Option(metavar="NAME", help="topics (Python's own help, no download), aesop or wikitext-2.")
]
TextFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A text of your own, in UTF-8, instead of a data set.")
]
Prompt = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Instead of the paper's; the query is its last token; repeatable."),
]
Hidden = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Width of the LSTM; default: depends on the text.")
]
Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="Training steps; default: depends on the text.")]
Merge = Annotated[
    bool | None,
    typer.Option("--merge/--every-visit", help="Sum keys over visits, or keep each; default: keep each if below 4 GB."),
]
Values = Annotated[
    bool,
    typer.Option("--values", help="Keep values too: several times the bytes, but certified, and slots can be muted."),
]


def _language_command(name: str, summary: str) -> Callable[..., None]:
    def command(
        dataset: Corpus = "topics",
        data: Data = None,
        text: TextFile = None,
        prompt: Prompt = None,
        hidden: Hidden = None,
        steps: Steps = None,
        merge: Merge = None,
        values: Values = False,
        out: Out = None,
        keep: Keep = Kept.slots,
        keep_run: KeepRun = False,
        overwrite: Overwrite = False,
        as_json: AsJson = False,
    ) -> None:
        from dualform.experiments.language.plan import LANGUAGE_EXPERIMENTS, LanguageOptions
        from dualform.experiments.language.reproduce import reproduce as run

        place, screen, stage = _begin(name, out, overwrite, as_json)
        options = LanguageOptions(
            dataset, data, text, tuple(prompt or ()), hidden, steps, merge, values, keep.value, keep_run
        )
        _print_results(screen, run(LANGUAGE_EXPERIMENTS[name], options, place, stage), as_json)
        asked_later = text is None or keep is Kept.slots  # else its recipe is wanted, which a run cannot name
        if keep_run and asked_later and not as_json:
            screen.print(f'Ask it more: dualform attend {place / "runs" / "seed-0"} --prompt "..."')

    command.__doc__ = f"""{summary}

    Trains an LSTM and records the keys of its gates, then asks: which positions of the training text does the last
    token of a prompt attend to? Writes results.md, results.json and index.html.
    """
    return command


for _name, _summary in _IMAGES.items():
    reproduce.command(
        _name, epilog=f"Example: dualform reproduce {_name} --dataset digits, or with --keep snapshots --keep-run"
    )(_image_command(_name, _summary))
reproduce.command(
    "cifar", epilog="Example: dualform reproduce cifar --dataset digits, or with --keep snapshots --keep-run"
)(_cifar_command)
for _name, _summary in _LANGUAGE.items():
    reproduce.command(
        _name, epilog=f"Example: dualform reproduce {_name} --text my_letters.txt --prompt 'Dear' --keep-run"
    )(_language_command(_name, _summary))


def _begin(name: str, out: Path | None, overwrite: bool, as_json: bool) -> "tuple[Path, Console, Stage]":
    """Prepare the directory for results. Returns it, the console, and a function that shows the progress of a stage."""
    from dualform import terminal
    from dualform.experiments.result_files import prepare_directory

    place = out or Path("results") / name
    prepare_directory(place, overwrite)
    screen = terminal.console()
    return place, screen, partial(terminal.progress, quiet(screen, as_json))


def _print_results(out: "Console", outcome: "Outcome", as_json: bool) -> None:
    """Print the results as JSON, or the tables of the page without its figures."""
    from dualform import terminal

    if as_json:
        print_json(outcome.document)
        return
    for section in outcome.sections:
        if section.text or section.columns:
            out.print(f"\n{section.title}", style="bold")
        if section.text:
            out.print(section.text)
        if section.columns:
            out.print(terminal.grid(section.columns, section.rows))
        for part in section.excerpts:
            out.print(terminal.passages(out, part.passages, part.title))
    out.print(f"\nAll of this, and more, is in {outcome.out / 'index.html'}")
