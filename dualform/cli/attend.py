"""`dualform attend`: show the training slots behind the model's output for an input."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualform.cli.app import AsJson, Run, app
from dualform.cli.companions import InputFile, Model
from dualform.cli.output import print_json
from dualform.cli.prompts import answer_prompts
from dualform.companions import importable, in_precision_of, make, make_own, output_for, own_inputs
from dualform.errors import QueryError

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from dualform.attention.contribution import LayerContribution
    from dualform.attention.spotlight import LayerSpotlight
    from dualform.memory import Memory
    from dualform.table import Table


Index = Annotated[
    list[int] | None, typer.Option(metavar="I", help="Which input, from 0; repeatable; default: the first.")
]
Layer = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Which layer; repeatable; default: all.")]
Count = Annotated[
    int | None, typer.Option(metavar="K", min=1, help="How many slots (default: 10) or passages (default: 3).")
]
By = Annotated[
    list[str] | None, typer.Option(metavar="TAG", help="Sum attention by this tag; repeatable; default: label.")
]
Per = Annotated[str | None, typer.Option(metavar="TAG", help="Sum slots with the same value of this tag, such as id.")]
Prompt = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="For a language model: the query is its last token; repeatable."),
]
Contribution = Annotated[
    bool, typer.Option("--contribution", help="Show what slots have added to the logit of a class, not attention.")
]
Target = Annotated[
    int | None, typer.Option(metavar="CLASS", help="Class of the logit, from 0; default: the predicted class.")
]


@app.command(epilog="Example: dualform attend runs/demo --index 3 --index 8 --layer output --per id --top 5")
def attend(
    run: Run,
    model: Model = None,
    inputs: InputFile = None,
    index: Index = None,
    layer: Layer = None,
    top: Count = None,
    by: By = None,
    per: Per = None,
    prompt: Prompt = None,
    contribution: Contribution = False,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Show which training slots are behind the model's output for an input.

    Prints, for each input and layer, the attention summed by a tag and the slots with the highest attention; with
    --contribution, what slots have added to the logit of a class. For a prompt, passages of the training text.
    """
    import dualform
    from dualform import terminal
    from dualform.inputs import read_inputs

    if target is not None and not contribution:
        raise QueryError("--target is the class of the logit: it needs --contribution")
    if contribution and prompt:
        raise QueryError("--contribution does not go with --prompt yet: prompts are answered by attention only")
    memory = dualform.load(run)
    network = memory.model(make(importable(model)) if model else make_own(memory))
    if prompt:
        answer_prompts(memory, network, prompt, layer, top or 3, as_json)
        return
    if not inputs and "text" in memory.about:
        raise QueryError("this is the run of a language model: pass --prompt TEXT, whose last token is the query")
    rows = read_inputs(inputs or own_inputs(memory))
    groups = tuple(by) if by else ("label",) if "label" in memory.tags else ()
    questions = [dualform.Top(top or 10, per=per), *([dualform.Total(by=groups)] if groups else [])]
    request = _Request(layer, questions, contribution, target)
    answers = [_ask(memory, network, number, rows.row(number), request) for number in index or [0]]
    if as_json:
        print_json({"run": str(run), "inputs": [answer.to_dict() for answer in answers]})
        return
    for answer in answers:
        _print_answer(terminal.console(), answer, ", ".join(groups), f"top {per or 'slot'}s")


@dataclass(frozen=True)
class _Request:
    """What to show for each input, by attention or by contribution to the logit of a class."""

    layers: list[str] | None
    tables: list[Any]
    contribution: bool
    target: int | None


@dataclass(frozen=True)
class _LogitSum:
    """A layer's output in the direction of a target: the initial part and all contributions add up to it."""

    target: int
    initial: float
    output: float
    first_order: bool  # along the gradient of the logit, if the layer does not compute the logit itself

    @classmethod
    def of(cls, contribution: "LayerContribution") -> "_LogitSum":
        """Return the sum for one input, over all of its queries if the layer has several."""
        assert contribution.classes is not None
        parts = (contribution.classes, contribution.initial(), contribution.output())
        target, initial, output = (part.sum().item() for part in parts)
        return cls(int(target), initial, output, contribution.first_order)

    def __str__(self) -> str:
        what = f"the logit of class {self.target}"
        if self.first_order:
            what = f"along the gradient of {what} (first order)"
        contributions = self.output - self.initial
        return f"initial part {self.initial:.4g} + contributions {contributions:.4g} = {self.output:.4g}, {what}"


@dataclass(frozen=True)
class _LayerTables:
    """Answers of one layer: the top slots, then the totals if there are any."""

    tables: list["Table"]
    total: _LogitSum | None  # of contributions

    def to_dict(self) -> dict[str, Any]:
        tables = {name: list(table.rows()) for name, table in zip(("top", "totals"), self.tables, strict=False)}
        return tables if self.total is None else asdict(self.total) | tables


@dataclass(frozen=True)
class _InputAnswer:
    """Answers of each layer to one input."""

    index: int
    layers: dict[str, _LayerTables]

    def to_dict(self) -> dict[str, Any]:
        return {"index": self.index, "layers": {name: tables.to_dict() for name, tables in self.layers.items()}}


def _ask(memory: "Memory", network: "nn.Module", index: int, row: "Tensor", request: _Request) -> _InputAnswer:
    """Ask about one input."""
    row = in_precision_of(network, row)
    output_for(network.eval(), row)  # raises if the input does not fit the model
    spotlight = memory.attend(network, row)
    layers = {}
    for name in request.layers or spotlight:
        if request.contribution:
            contribution = spotlight[name].contribution(request.target)
            layers[name] = _LayerTables(contribution.collect(*request.tables), _LogitSum.of(contribution))
        else:
            layers[name] = _LayerTables(_whole(spotlight[name]).collect(*request.tables), None)
    return _InputAnswer(index, layers)


def _whole(layer: "LayerSpotlight") -> "LayerSpotlight":
    """Ask about the whole input where it has many rows in a layer, such as positions of an image, or tokens."""
    return layer if len(layer.queries) == 1 else layer.per_input()


def _print_answer(out: "Console", answer: _InputAnswer, groups: str, top: str) -> None:
    """Print the answers of all layers; `groups` and `top` are titles."""
    from dualform import terminal

    for name, layer in answer.layers.items():
        out.print(f"input {answer.index}, layer {name}", style="bold")
        best, *totals = layer.tables
        what, title = "attention", top
        if layer.total is not None:
            what, title = f"contribution to the logit of class {layer.total.target}", f"{top} by contribution"
            out.print(str(layer.total))
        for total in totals:
            out.print(terminal.bars(total, f"{what} by {groups}"))
        out.print(terminal.table(best, title), "")
