"""The Python that makes what a panel shows: lines to be copied into a notebook, and run by the tests.

Each function gives lines that go on from those of `opened`, which make `memory` and `model`, and of a `..._row`
function, which makes `row`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from keyword import iskeyword
from math import isfinite
from typing import TYPE_CHECKING

from dualform import Question
from dualform.viewer.requests import MuteSet, PassagesRequest, Value

if TYPE_CHECKING:
    from dualform.viewer.opened_run import OpenedRun


def loaded(run: "OpenedRun", *lines: str) -> str:
    """Load the run alone, and go on with other lines."""
    return "\n".join(["import dualform", "", *_loading(run), *lines])


def _loading(run: "OpenedRun") -> list[str]:
    """Load the run, with the recipe that it was opened with."""
    path = repr(str(run.memory.path))
    if run.cannot_train is not None:
        return [f"memory = dualform.load({path})"]
    if run.companions.recipe is None:
        lines = ["from dualform.companions import own_recipe", f"recipe = own_recipe(dualform.load({path}))"]
    else:
        package, _, factory = run.companions.recipe.partition(":")
        lines = [f"from {package} import {factory} as make_recipe", "recipe = make_recipe()"]
    return [*lines, f"memory = dualform.load({path}, recipe=recipe)"]


def opened(run: "OpenedRun") -> list[str]:
    """Load the run, and the model it ends with."""
    package, _, factory = (run.model or "").partition(":")
    has_arguments = not run.companions.model and "arguments" in run.memory.about
    arguments = '**memory.about["arguments"]' if has_arguments else ""
    return [
        "import torch",
        "import dualform",
        f"from {package} import {factory}",
        "",
        *_loading(run),
        f"model = memory.model({factory}({arguments})).eval()",
    ]


def indexed_row(run: "OpenedRun", index: int) -> list[str]:
    """Read a test input."""
    return [*_inputs(run), f"row = inputs.row({index}){_conversion(run)}"]


def _inputs(run: "OpenedRun") -> list[str]:
    path = run.companions.inputs or run.memory.path / run.memory.about["inputs"]
    lines = ["", "from pathlib import Path", "from dualform.inputs import read_inputs"]
    return [*lines, f"inputs = read_inputs(Path({str(path)!r}))"]


def _conversion(run: "OpenedRun") -> str:
    """Convert inputs, which are stored in one precision, for a model in another."""
    assert run.inputs is not None
    assert run.network is not None
    precision = next((p.dtype for p in run.network.parameters() if p.is_floating_point()), None)
    fits = not run.inputs.inputs.is_floating_point() or precision in (None, run.inputs.inputs.dtype)
    return "" if fits else f".to({precision})"


def drawn_row(run: "OpenedRun", strokes: str) -> list[str]:
    """Make an input of a drawing."""
    named = {name: repr(value) for name, value in vars(run.companions).items() if value is not None}
    if run.companions.inputs is not None:
        named["inputs"] = f"Path({str(run.companions.inputs)!r})"
    arguments = ", ".join(f"{name}={value}" for name, value in named.items())
    return [
        "",
        "from pathlib import Path",
        "from dualform.viewer.opened_run import Companions, open_run",
        f"drawing = open_run({str(run.memory.path)!r}, Companions({arguments})).drawing",
        f"row = drawing.input(drawing.image({strokes!r}))",
    ]


def prompt_row(run: "OpenedRun", prompt: str, token: int) -> list[str]:
    """Encode a prompt up to a token."""
    return [
        "",
        "from dualform.datasets.tokens import encode_prompt",
        f"text = dualform.text.Text.load({str(run.memory.path / run.memory.about['text'])!r})",
        f"row = torch.from_numpy(encode_prompt({prompt!r}, text))[None, : {token + 1}]",
    ]


def predicted(model: str, prompt: bool = False) -> list[str]:
    """Compute the probabilities that a model gives to its outputs, or to the next token."""
    if not prompt:
        return ["with torch.no_grad():", f"    probabilities = torch.softmax({model}(row), dim=1)"]
    return [
        "with torch.no_grad():",
        f"    output = {model}(row)",
        "logits = output[0] if isinstance(output, tuple) else output",
        "probabilities = torch.softmax(logits[:, -1], dim=1)",
    ]


def at_step(step: int) -> list[str]:
    """Make the model as it was after a step."""
    return [f"as_it_was = memory.until(step={step}).model(model)"]


def history(steps: Sequence[int]) -> list[str]:
    """Compute probabilities after each of some steps."""
    return [
        f"steps = {list(steps)}",
        "with torch.no_grad():",
        "    probabilities = [torch.softmax(memory.until(step=s).model(model)(row), dim=1) for s in steps]",
    ]


def accuracies(run: "OpenedRun", steps: Sequence[int], max_inputs: int) -> list[str]:
    """Measure the accuracy for each task after some steps, on some of its inputs, spread evenly."""
    return [
        *opened(run),
        *_inputs(run),
        f"steps = {list(steps)}",
        "tasks = torch.zeros(len(inputs)) if inputs.tasks is None else inputs.tasks",
        "accuracies = {}",
        "for task in tasks.unique().tolist():",
        "    rows = torch.nonzero(tasks == task).flatten()",
        f"    rows = rows[torch.linspace(0, len(rows) - 1, min({max_inputs}, len(rows))).long()]",
        f"    sample, labels = inputs.inputs[rows]{_conversion(run)}, inputs.labels[rows]",
        "    with torch.no_grad():",
        "        predicted = [memory.until(step=step).model(model)(sample).argmax(dim=1) for step in steps]",
        "    accuracies[task] = [(labels == answer).float().mean().item() for answer in predicted]",
    ]


def muted(sets: Sequence[MuteSet]) -> list[str]:
    """Make the model with the slots of these sets muted."""
    lines, views = [], ""
    if any(mute_set.positions for mute_set in sets):
        lines = [
            'tables = [memory.visits(layer, by="position") for layer in memory.layers]',
            'visited = {position for table in tables for position in table["position"].tolist()} - {None}',
        ]
    for mute_set in sets:
        conditions = [_keyword(name, _values(values)) for name, values in mute_set.tags]
        if mute_set.steps:
            conditions.append(f"step=range({mute_set.steps[0]}, {mute_set.steps[1]})")
        if mute_set.positions:
            first, end = mute_set.positions
            conditions.append(f"position=[position for position in visited if {first} <= position < {end}]")
        views += f".without({', '.join(conditions)})"
    return [*lines, f"muted = memory{views}.model(model)"]


def retrained(sets: Sequence[MuteSet]) -> list[str]:
    """Train again without the examples of these sets."""
    without = (
        f"{{{', '.join(f'{name!r}: {_values(values)}' for name, values in mute_set.tags)}}}" for mute_set in sets
    )
    return [f"again = memory.retrain(without=[{', '.join(without)}])"]


def _keyword(name: str, value: str) -> str:
    """Pass an argument by its name, which may be any text: what is no name in Python goes into a dict."""
    return (
        f"{name}={value}"
        if name.isidentifier() and not iskeyword(name) and name.isascii()
        else f"**{{{name!r}: {value}}}"
    )


def _values(values: Sequence[Value]) -> str:
    """List values; Python has no literals for NaN and infinity."""
    finite = (not isinstance(value, float) or isfinite(value) for value in values)
    written = (repr(value) if ok else f"float({str(value)!r})" for value, ok in zip(values, finite, strict=True))
    return f"[{', '.join(written)}]"


def spotlight(layer: str, sums_rows: bool, questions: Mapping[str, Question]) -> list[str]:
    """Ask a layer's spotlight some questions; each answer gets the question's name."""
    lines = ["from dualform import Timeline, Top, Total", "", f"layer = memory.attend(model, row)[{layer!r}]"]
    if sums_rows:
        lines += [f"layer = memory.attend({{{layer!r}: layer.queries.sum(dim=0)}})[{layer!r}]"]
    for name, question in questions.items():
        defaults = {entry.name: entry.default for entry in fields(question)}  # type: ignore[arg-type]
        arguments = [f"{entry}={value!r}" for entry, value in vars(question).items() if value != defaults[entry]]
        lines.append(f"({name},) = layer.collect({type(question).__name__}({', '.join(arguments)}))")
    return lines


def passages(request: PassagesRequest, hits: int) -> list[str]:
    """Find the passages with the highest attention."""
    per = ', per="position"' if request.summed else ""
    table = '.without("step")' if request.summed else ""
    return [
        f"layer = memory.attend(model, row, rows=-1)[{request.layer!r}]",
        f"passages = dualform.text.passages(text, layer.top({hits}{per}){table}, most={request.most})",
    ]
