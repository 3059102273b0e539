"""The Python that makes what a panel shows: lines to be copied into a notebook, and run by the tests.

Each function gives lines that go on from those of `opened`, which make `memory` and `model`, and of a `..._row`
function, which makes `row`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from dualform import Question
from dualform.viewer.requests import MuteSet, PassagesRequest

if TYPE_CHECKING:
    from dualform.viewer.exhibit import Exhibit


def loaded(exhibit: "Exhibit", *lines: str) -> str:
    """The run alone, and what follows."""
    return "\n".join(["import dualform", "", f"memory = dualform.load({str(exhibit.memory.path)!r})", *lines])


def opened(exhibit: "Exhibit") -> list[str]:
    """The run, and the model it ends with."""
    package, _, factory = (exhibit.model or "").partition(":")
    arguments = '**memory.about["arguments"]' if not exhibit.named.model and "arguments" in exhibit.memory.about else ""
    return [
        "import torch",
        "import dualform",
        f"from {package} import {factory}",
        "",
        f"memory = dualform.load({str(exhibit.memory.path)!r})",
        f"model = memory.model({factory}({arguments})).eval()",
    ]


def own_row(exhibit: "Exhibit", index: int) -> list[str]:
    return [*_inputs(exhibit), f"row = inputs.row({index}){_converted(exhibit)}"]


def _inputs(exhibit: "Exhibit") -> list[str]:
    path = exhibit.named.inputs or exhibit.memory.path / exhibit.memory.about["inputs"]
    lines = ["", "from pathlib import Path", "from dualform.inputs import read_inputs"]
    return [*lines, f"inputs = read_inputs(Path({str(path)!r}))"]


def _converted(exhibit: "Exhibit") -> str:
    """Inputs are stored in one precision, and the model may be in another."""
    assert exhibit.inputs is not None
    assert exhibit.network is not None
    wanted = next((p.dtype for p in exhibit.network.parameters() if p.is_floating_point()), None)
    fits = not exhibit.inputs.inputs.is_floating_point() or wanted in (None, exhibit.inputs.inputs.dtype)
    return "" if fits else f".to({wanted})"


def drawn_row(exhibit: "Exhibit", strokes: str) -> list[str]:
    named = ", ".join(
        f"{name}={value!r}" for name, value in vars(exhibit.named).items() if value is not None and name != "inputs"
    )
    inputs = "" if exhibit.named.inputs is None else f"inputs=Path({str(exhibit.named.inputs)!r})"
    arguments = ", ".join(part for part in (inputs, named) if part)
    return [
        "",
        "from pathlib import Path",
        "from dualform.viewer.exhibit import Named, open_exhibit",
        f"pen = open_exhibit({str(exhibit.memory.path)!r}, Named({arguments})).pen",
        f"row = pen.input(pen.image({strokes!r}))",
    ]


def prompt_row(exhibit: "Exhibit", prompt: str, token: int) -> list[str]:
    return [
        "",
        "from dualform.datasets.tokens import encode_prompt",
        f"text = dualform.text.Text.load({str(exhibit.memory.path / exhibit.memory.about['text'])!r})",
        f"row = torch.from_numpy(encode_prompt({prompt!r}, text))[None, : {token + 1}]",
    ]


def predicted(model: str, prompt: bool = False) -> list[str]:
    """The probabilities a model gives to its outputs, or to the next token."""
    if prompt:
        return ["with torch.no_grad():", f"    probabilities = torch.softmax({model}(row)[0][:, -1], dim=1)"]
    return ["with torch.no_grad():", f"    probabilities = torch.softmax({model}(row), dim=1)"]


def at_step(step: int) -> list[str]:
    return [f"as_it_was = memory.until(step={step}).model(model)"]


def history(steps: Sequence[int]) -> list[str]:
    return [
        f"steps = {list(steps)}",
        "with torch.no_grad():",
        "    probabilities = [torch.softmax(memory.until(step=s).model(model)(row), dim=1) for s in steps]",
    ]


def accuracies(exhibit: "Exhibit", steps: Sequence[int], most: int) -> list[str]:
    """Of each task, on as many of its inputs, spread evenly."""
    return [
        *opened(exhibit),
        *_inputs(exhibit),
        f"steps = {list(steps)}",
        "tasks = torch.zeros(len(inputs)) if inputs.tasks is None else inputs.tasks",
        "accuracies = {}",
        "for task in tasks.unique().tolist():",
        "    rows = torch.nonzero(tasks == task).flatten()",
        f"    rows = rows[torch.linspace(0, len(rows) - 1, min({most}, len(rows))).long()]",
        f"    some, wanted = inputs.inputs[rows]{_converted(exhibit)}, inputs.labels[rows]",
        "    with torch.no_grad():",
        "        said = [memory.until(step=step).model(model)(some).argmax(dim=1) for step in steps]",
        "    accuracies[task] = [(one == wanted).float().mean().item() for one in said]",
    ]


def muted(sets: Sequence[MuteSet]) -> list[str]:
    """The model with these slots muted."""
    views = "".join(f".without({_conditions(one)})" for one in sets)
    ranged = any(one.positions for one in sets)
    known = ['visited = memory.seen(memory.layers[0], by="position")["position"]'] if ranged else []
    return [*known, f"muted = memory{views}.model(model)"]


def _conditions(one: MuteSet) -> str:
    parts = [f"{name}={list(values)!r}" for name, values in one.tags]
    if one.steps:
        parts.append(f"step=range({one.steps[0]}, {one.steps[1]})")
    if one.positions:
        first, end = one.positions
        parts.append(f"position=visited[(visited >= {first}) & (visited < {end})]")
    return ", ".join(parts)


def spotlight(layer: str, summed_rows: bool, questions: Mapping[str, Question]) -> list[str]:
    """Answers by name, each to a question."""
    lines = ["from dualform import Timeline, Top, Total", "", f"layer = memory.attend(model, row)[{layer!r}]"]
    if summed_rows:
        lines += [f"layer = memory.attend({{{layer!r}: layer.queries.sum(dim=0)}})[{layer!r}]"]
    return [*lines, *(f"({name},) = layer.collect({_written(question)})" for name, question in questions.items())]


def _written(question: Question) -> str:
    """A question as one would write it: without what is usual."""
    usual = {one.name: one.default for one in fields(question)}  # type: ignore[arg-type]
    said = {name: value for name, value in vars(question).items() if value != usual[name]}
    return f"{type(question).__name__}({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def passages(request: PassagesRequest, hits: int) -> list[str]:
    per = ', per="position"' if request.summed else ""
    table = '.without("step")' if request.summed else ""
    return [
        f"layer = memory.attend(model, row, rows=-1)[{request.layer!r}]",
        f"found = dualform.text.passages(text, layer.top({hits}{per}){table}, most={request.most})",
    ]
