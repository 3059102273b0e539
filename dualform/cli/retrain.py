"""`dualform retrain`: train a run again without some of its examples, and compare that with muting them."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualform.cli.app import AsJson, Run, app
from dualform.cli.companions import InputFile, Recipe
from dualform.cli.output import print_json, quiet
from dualform.companions import importable, named_recipe, own_file, own_inputs, own_recipe
from dualform.errors import DualformError, QueryError, RunExists, UnknownName

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    import dualform
    from dualform.inputs import Inputs
    from dualform.memory import Memory

Tags = dict[str, list[Any]]

_OTHERS = "no layer"  # where parameters are that were not recorded
_BOOLEANS = {"true": True, "false": False}

Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TAG=VALUE,...", help="Leave out the examples with one of these values; several tags all have to fit."
    ),
]
Where = Annotated[
    list[str] | None, typer.Option(metavar="TAG=VALUE,...", help="Or leave out all but those; several tags as well.")
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Where to look first for the data of the run's recipe.")]
Record = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Record this training as a run of its own, in a new directory.")
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save the parameters and buffers, as .safetensors for load_state_dict."),
]


@app.command(epilog="Example: dualform retrain runs/digits --recipe my_project.training:recipe --without label=9")
def retrain(
    run: Run,
    without: Without = None,
    where: Where = None,
    recipe: Recipe = None,
    data: Data = None,
    inputs: InputFile = None,
    record: Record = None,
    save: Save = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --save replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a run again without some examples: the true answer to what muting them tells at once.

    Needs the recipe that the run was trained by. Prints how far each layer ends from where the run did and, if there
    are test inputs with labels, the accuracy of the run's model, with the examples muted, and trained again.
    """
    import dualform
    from dualform import terminal

    _check_save(save, overwrite)
    _check_record(record)
    memory = dualform.load(run)
    left_out = Examples.of(memory, without, where)
    memory = dualform.load(run, recipe=_recipe(memory, recipe, data))
    tests = _labelled(memory, inputs)
    watched = quiet(terminal.console(stderr=True), as_json)
    with _recorded(memory, record) as place:
        trained = _train(memory, left_out, place, watched)
    with terminal.busy(watched, "muting the same examples"):
        outcome = _compared(memory, left_out, trained, tests)
    if save is not None:
        _write(save, trained.model)
    if as_json:
        names = {"saved": save, "recorded": record}
        print_json(
            {"run": str(run), **left_out.to_dict(), **asdict(outcome)}
            | {name: None if path is None else str(path) for name, path in names.items()}
        )
        return
    _print(terminal.console(), left_out, outcome)
    for what, path in (("parameters and buffers are in", save), ("the training is recorded in", record)):
        if path is not None:
            terminal.console().print(f"{what} {path}", soft_wrap=True)


# What is asked


@dataclass(frozen=True)
class Examples:
    """The examples that are left out: those with these tags, or all others."""

    tags: Tags
    kept: bool  # whether these are the ones that are not left out

    @classmethod
    def of(cls, memory: "Memory", without: list[str] | None, where: list[str] | None) -> "Examples":
        """Read the options, values by the kinds of a run's tags."""
        if bool(without) == bool(where):
            raise QueryError(
                "say which examples to train without: --without label=9; or --where label=3, which leaves out others"
            )
        option, written = ("--where", where) if where else ("--without", without)
        return cls(read_tags(written or [], memory.tags, option), bool(where))

    def view(self, memory: "Memory") -> "Memory":
        """Return the memory with the same examples muted."""
        return memory.where(**self.tags) if self.kept else memory.without(**self.tags)

    def to_dict(self) -> dict[str, Tags | None]:
        """Return these examples as `Memory.retrain` takes them."""
        return {"without": None, "where": self.tags} if self.kept else {"without": self.tags, "where": None}

    def __str__(self) -> str:
        words = " and ".join(f"{name} {', '.join(map(str, values))}" for name, values in self.tags.items())
        return f"with {words} alone" if self.kept else f"without {words}"


def read_tags(written: Sequence[str], kinds: Mapping[str, str], option: str) -> Tags:
    """Read tags such as `label=3,5`, whose values are of the tags' kinds: int, float, bool or string."""
    tags: Tags = {}
    for one in written:
        name, _, values = one.partition("=")
        if not name or not values:
            raise QueryError(f"{option} is a tag and its values, such as label=9 or id=3,17,40, not {one!r}")
        if name not in kinds:
            raise UnknownName("tag", name, kinds)
        tags.setdefault(name, []).extend(_value(value.strip(), name, kinds[name]) for value in values.split(","))
    return tags


def _value(text: str, tag: str, kind: str) -> Any:
    try:
        if kind == "bool":
            return _BOOLEANS[text.lower()]
        return {"int": int, "float": float, "string": str}[kind](text)
    except (KeyError, ValueError):
        expected = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        raise QueryError(f"a value of tag {tag!r} is {expected}, not {text!r}") from None


def _recipe(memory: "Memory", named: str | None, data: Path | None) -> "dualform.Recipe":
    if named is None:
        return own_recipe(memory, data)
    if data is not None:
        raise QueryError("--data is for the recipe that the run itself names; one that --recipe names finds its own")
    return named_recipe(importable(named))


def _labelled(memory: "Memory", chosen: Path | None) -> "Inputs | None":
    """Return test inputs with labels: those that the user named, or the run's own if it has any."""
    from dualform.inputs import read_inputs

    try:
        inputs = read_inputs(chosen or own_inputs(memory))
    except QueryError:
        if chosen is not None:
            raise
        return None
    if inputs.labels is None or inputs.fault or not len(inputs):
        if chosen is not None:
            raise QueryError(f"{chosen} {inputs.fault or 'has no labels'}: nothing can be compared on it")
        return None
    return inputs


# What is trained


@dataclass(frozen=True)
class _Trained:
    model: "nn.Module"
    steps: int  # that were taken again
    seconds: float


def _train(memory: "Memory", left_out: Examples, record: Path | None, watched: "Console") -> _Trained:
    from dualform import terminal

    begun, counted = monotonic(), [0]
    with terminal.progress(watched, "training again", memory.steps) as done:

        def progress(step: int, steps: int) -> None:
            counted[0] = step
            done(step - 1, total=steps)

        tags = left_out.to_dict()
        model = memory.retrain(without=tags["without"], where=tags["where"], record=record, progress=progress)
    return _Trained(model, counted[0], monotonic() - begun)


@contextmanager
def _recorded(memory: "Memory", place: Path | None) -> Iterator[Path | None]:
    """Yield where to record; it gets the name that the user chose once the training has come to its end."""
    if place is None:
        yield None
        return
    companions = list[Path]()  # files beside the run that it names are those of the new one, too
    for what in ("inputs", "text"):
        with suppress(QueryError):  # it names none, or none of its own
            companions.append(own_file(memory, what, "leave out --record"))
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        yield unfinished / place.name
        for source in companions:
            if source.is_file():
                shutil.copyfile(source, unfinished / place.name / source.name)
        if place.is_dir():
            place.rmdir()  # it is empty
        (unfinished / place.name).rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_record(place: Path | None) -> None:
    if place is not None and place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RunExists(f"{place} is not empty; choose another directory with --record")


def _check_save(path: Path | None, overwrite: bool) -> None:
    if path is None:
        return
    if path.suffix != ".safetensors":
        raise QueryError(f"--save writes .safetensors, not {path.name}")
    if path.exists() and not overwrite:
        raise RunExists(f"{path} exists already; choose another file with --save, or replace it with --overwrite")
    if not path.parent.is_dir():
        raise QueryError(f"there is no directory {path.parent} for {path.name}")


def _write(path: Path, model: "nn.Module") -> None:
    """Save a model's parameters and buffers, whole or not at all."""
    import numpy as np
    import torch
    from safetensors.torch import save

    from dualform.atomic_file import write_atomically

    tensors = {name: t for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    # tied ones are saved under each of their names
    content = save({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()})
    write_atomically(path, [np.frombuffer(content, np.uint8)])


# What came of it


@dataclass(frozen=True)
class Outcome:
    """A training again, compared with the run's own.

    Args:
        steps: How many were taken again.
        seconds: What that took.
        moved: How far each layer's parameters are from the run's final ones, as a share of their norm.
        inputs: How many test inputs with labels there are.
        accuracy: Of the run's model, of that with the same examples muted, and of that trained again.
        changed: How many predictions are others than those of the run's model.
        note: Why there is no accuracy of the muted model.
    """

    steps: int
    seconds: float
    moved: dict[str, float]
    inputs: int
    accuracy: dict[str, float | None] | None
    changed: dict[str, int | None] | None
    note: str | None


def _compared(memory: "Memory", left_out: Examples, trained: _Trained, tests: "Inputs | None") -> Outcome:
    from dualform.viewer.outputs import Outputs

    before, note = memory.model(trained.model).eval(), None
    moved = _moved(memory, before, trained.model)
    if tests is None:
        return Outcome(trained.steps, trained.seconds, moved, 0, None, None, None)
    models: dict[str, nn.Module] = {"before": before, "again": trained.model}
    try:
        models["muted"] = left_out.view(memory).model(trained.model).eval()
    except DualformError as error:  # such as one of a run that holds keys only
        note = str(error)
    outputs = {name: Outputs.of(model, tests) for name, model in models.items()}
    accuracy = {name: outputs[name].accuracy if name in outputs else None for name in ("before", "muted", "again")}
    first = outputs["before"].predicted
    changed = {
        name: int((outputs[name].predicted != first).sum()) if name in outputs else None for name in ("muted", "again")
    }
    return Outcome(trained.steps, trained.seconds, moved, len(first), accuracy, changed, note)


def _moved(memory: "Memory", before: "nn.Module", again: "nn.Module") -> dict[str, float]:
    """Return how far parameters are apart, layer by layer, as a share of their norm before."""
    from dualform.store import Run as StoredRun

    layers = {name: [use.parameter.name for use in layer.uses] for name, layer in StoredRun(memory.path).layers.items()}
    was, now = memory.parameters(before), memory.parameters(again)
    distances = {name: _distance([(was[p], now[p]) for p in names]) for name, names in layers.items()}
    if memory.unrecorded:
        own, others = dict(before.named_parameters()), dict(again.named_parameters())
        distances[_OTHERS] = _distance([(own[name], others[name]) for name in memory.unrecorded if name in own])
    return distances


def _distance(pairs: Sequence[tuple[Any, Any]]) -> float:
    off = sum(float((now.detach().double() - was.detach().double()).square().sum()) for was, now in pairs) ** 0.5
    size = sum(float(was.detach().double().square().sum()) for was, _ in pairs) ** 0.5
    return float(off / size) if size else off


def _print(out: "Console", left_out: Examples, outcome: Outcome) -> None:
    from dualform import terminal

    out.print(f"trained again {left_out}: {outcome.steps:,} steps in {outcome.seconds:,.1f} s\n", style="bold")
    rows = [[name, f"{share:.1%}" if isfinite(share) else "-"] for name, share in outcome.moved.items()]
    out.print(terminal.grid(["layer", "moved, of its norm"], rows), "")
    if outcome.accuracy is None:
        out.print("no test inputs with labels: pass --input FILE.safetensors to compare predictions")
        return
    names = {"before": "the run's model", "muted": "muted", "again": "trained again"}
    changed = outcome.changed or {}
    cells = [
        [words, _cell(outcome.accuracy[name], ".1%"), _cell(changed.get(name), ",")] for name, words in names.items()
    ]
    out.print(terminal.grid([f"of {outcome.inputs:,} test inputs", "accuracy", "predictions changed"], cells))
    if outcome.note:
        out.print(f"note: {outcome.note}")


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
