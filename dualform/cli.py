"""The command line: parse, call, print.

    dualform demo
    dualform attend runs/demo --index 3 --per id

Everything heavy is imported inside the commands, so that `--help` and `info` do not wait for torch.
"""

import json
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dualform import __version__
from dualform.errors import DualformError, QueryError, RunExists, UnknownName

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from dualform.experiments.demo import Explanation, Trained
    from dualform.memory import Memory
    from dualform.table import Table

_DEMO = Path("runs/demo")
_OWN = "dualform.experiments."  # models a run may name by itself: code of this package


class _Commands(TyperGroup):
    """Turns what went wrong on the user's side into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `dualform ... | head` is no error; typer knows what to do
        except DualformError as error:
            _fail(str(error), 1)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
        except KeyboardInterrupt:
            _fail("interrupted", 130)


def _fail(reason: str, code: int) -> None:
    print(f"dualform: {' '.join(reason.split())}", file=sys.stderr)
    raise typer.Exit(code)


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, epilog="Begin with: dualform demo",
)  # fmt: skip

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a recorded run.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]


def main() -> None:
    app(prog_name="dualform")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dualform {__version__}")
        raise typer.Exit


@app.callback()
def _dualform(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Which training examples are behind this prediction? The exact dual form of PyTorch layers."""


# info, verify


@app.command(epilog="Example: dualform info runs/demo")
def info(run: Run, as_json: AsJson = False) -> None:
    """What a run holds: layers, slots, steps, tags, bytes. Reads headers only."""
    from dualform import store, terminal

    opened = store.Run(run)
    if as_json:
        _print_json(store.summary(opened))
    else:
        terminal.console().print(terminal.facts(store.summary_lines(opened)))


@app.command(epilog="Example: dualform verify runs/demo && echo exact")
def verify(run: Run, as_json: AsJson = False) -> None:
    """Read every byte and measure how exactly the dual form is the model. Exits with 1 if it is not."""
    import dualform
    from dualform import terminal

    out = terminal.console()
    memory = dualform.load(run)
    with terminal.busy(_quiet(out, as_json), "verifying") as at:
        certificate = memory.verify(at)
    if as_json:
        _print_json(certificate.to_dict())
    else:
        out.print(*terminal.certificate(certificate), sep="\n")
    if not certificate.ok:
        raise typer.Exit(1)


# attend


@app.command(epilog="Example: dualform attend runs/demo --index 3 --index 8 --layer output --per id --top 5")
def attend(
    run: Run,
    model: Annotated[
        str | None, typer.Option(metavar="PACKAGE:FACTORY", help="Function or class that makes the model.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Inputs, .npy or .safetensors; else the run's own.")
    ] = None,
    index: Annotated[
        list[int] | None, typer.Option(metavar="I", help="Which input, from 0; repeatable; else the first.")
    ] = None,
    layer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Which layer; repeatable; else all.")] = None,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="How many training slots to show.")] = 10,
    by: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Sum attention by this tag; repeatable; else by label.")
    ] = None,
    per: Annotated[
        str | None, typer.Option(metavar="TAG", help="Count slots with the same tag, say id, as one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which training slots are behind the model's answer to an input?

    Shows, for each input and layer, the attention summed by a tag and the slots with the highest attention.
    """
    import dualform
    from dualform import terminal

    memory = dualform.load(run)
    network = memory.model(_make(_importable(model) if model else _own_model(memory)))
    rows = _read(inputs or _own_inputs(memory))
    groups = tuple(by) if by else ("label",) if "label" in memory.tags else ()
    questions = [dualform.Top(top, per=per), *([dualform.Total(by=groups)] if groups else [])]
    found = {one: _ask(memory, network, _input(rows, one), layer, questions) for one in index or [0]}
    if as_json:
        _print_json({"run": str(run), "inputs": [_document(one, answers) for one, answers in found.items()]})
        return
    out = terminal.console()
    for one, answers in found.items():
        for name, (best, *totals) in answers.items():
            out.print(f"input {one}, layer {name}", style="bold")
            for total in totals:
                out.print(terminal.bars(total, f"attention by {', '.join(groups)}"))
            out.print(terminal.table(best, f"top {per or 'slot'}s"), "")


def _ask(
    memory: "Memory", network: "nn.Module", row: "Tensor", layers: list[str] | None, questions: list[Any]
) -> dict[str, list["Table"]]:
    """The answers of each layer to one input."""
    import torch

    floating = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    row = row.to(floating) if row.is_floating_point() else row
    try:
        with torch.no_grad():
            network.eval()(row)
    except Exception as error:
        shape = f"{tuple(row.shape[1:])} of {str(row.dtype).removeprefix('torch.')}"
        raise QueryError(f"the model does not take inputs of shape {shape}: {error}") from error
    spotlight = memory.attend(network, row)
    return {name: spotlight[name].collect(*questions) for name in layers or spotlight}


def _document(index: int, answers: dict[str, list["Table"]]) -> dict[str, Any]:
    names = ("top", "totals")
    layers = {
        layer: {name: list(table.rows()) for name, table in zip(names, tables, strict=False)}
        for layer, tables in answers.items()
    }
    return {"index": index, "layers": layers}


def _own_model(memory: "Memory") -> str:
    """The model a run names by itself. Only this package's code: opening a run must not run a stranger's."""
    named = memory.about.get("model")
    if isinstance(named, str) and named.startswith(_OWN):
        return named
    hint = f"; the run says {named}, pass it if you trust it" if isinstance(named, str) else ""
    raise QueryError(f"which model? pass --model PACKAGE:FACTORY, a function or class that makes it{hint}")


def _own_inputs(memory: "Memory") -> Path:
    named = memory.about.get("inputs")
    if not isinstance(named, str):
        raise QueryError("which inputs? the run has none of its own: pass --input FILE.npy or FILE.safetensors")
    if named in ("", ".", "..") or "/" in named or "\\" in named or ":" in named:
        raise QueryError(f"the run names {named!r} as its inputs, which is no file of its own: pass --input FILE")
    return memory.path / named


def _importable(named: str) -> str:
    """The user named it, so the current directory counts, as it does for `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return named


def _make(named: str) -> "nn.Module":
    from torch import nn

    package, _, factory = named.partition(":")
    if not package or not factory:
        raise QueryError(f"--model must be PACKAGE:FACTORY, such as my_project.models:mlp, not {named!r}")
    try:
        module = import_module(package)
    except Exception as error:
        raise QueryError(f"cannot import {package!r}: {type(error).__name__}: {error}") from error
    if not hasattr(module, factory):
        raise UnknownName(f"factory in {package} called", factory, (n for n in vars(module) if not n.startswith("_")))
    try:
        made = getattr(module, factory)()
    except Exception as error:
        raise QueryError(f"{named} does not make a model: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise QueryError(f"{named} must make a torch.nn.Module, it made a {type(made).__name__}")
    return made


def _read(path: Path) -> "Tensor":
    """Inputs from a file that can hold nothing but numbers: (inputs, ...)."""
    readers = {".npy": _read_npy, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise QueryError(f"{path} is neither .npy nor .safetensors; save the inputs as one of them")
    if not path.is_file():
        raise QueryError(f"there is no file {path}")
    rows = readers[path.suffix](path)
    if not rows.dim():
        raise QueryError(f"{path} holds a single number; inputs have a first dimension that counts them")
    return rows


def _read_npy(path: Path) -> "Tensor":
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.lib.format.open_memmap(path, mode="r").copy())
    except (ValueError, TypeError) as error:
        raise QueryError(f"cannot read {path} as an array of numbers: {error}") from error


def _read_safetensors(path: Path) -> "Tensor":
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if "inputs" not in names and len(names) != 1:
                raise UnknownName(f"tensor in {path} called", "inputs", names)
            tensor: Tensor = file.get_tensor("inputs" if "inputs" in names else names[0])
            return tensor
    except SafetensorError as error:
        raise QueryError(f"cannot read {path}: {error}") from error


def _input(rows: "Tensor", index: int) -> "Tensor":
    """One input as a batch of its own."""
    if not 0 <= index < len(rows):
        raise QueryError(f"there is no input {index}; there are {len(rows)}, counted from 0")
    return rows[index : index + 1]


# demo


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
    with terminal.progress(_quiet(screen, as_json), "training", steps) as done:
        outcome = experiment.run(out, steps=steps, overwrite=True, progress=done)
    if as_json:
        _print_json(outcome.to_dict())
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


# Printing


def _quiet(out: "Console", as_json: bool) -> "Console":
    """Where progress goes: nowhere when a program reads."""
    from rich.console import Console

    return Console(quiet=True, force_terminal=False) if as_json else out


def _print_json(document: Any) -> None:
    print(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; what is not a number is null."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
