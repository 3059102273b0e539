"""`dualform attend`: the training slots behind the model's answer to an input."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualform.cli.app import AsJson, Run, app
from dualform.cli.models import importable, make, make_own, one_input, own_inputs, read
from dualform.cli.output import print_json
from dualform.cli.prompts import answer_prompts
from dualform.errors import QueryError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dualform.memory import Memory
    from dualform.table import Table


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
    top: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="How many training slots to show, else 10; passages, else 3.")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Sum attention by this tag; repeatable; else by label.")
    ] = None,
    per: Annotated[
        str | None, typer.Option(metavar="TAG", help="Count slots with the same tag, say id, as one.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Of a language model: ask about its last token; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which training slots are behind the model's answer to an input?

    Shows, for each input and layer, the attention summed by a tag and the slots with the highest attention. For a
    prompt, the passages of the training text.
    """
    import dualform
    from dualform import terminal

    memory = dualform.load(run)
    network = memory.model(make(importable(model)) if model else make_own(memory))
    if prompt:
        answer_prompts(memory, network, prompt, layer, top or 3, as_json)
        return
    if not inputs and "text" in memory.about:
        raise QueryError("this run is of a language model: pass --prompt TEXT, whose last token is asked about")
    rows = read(inputs or own_inputs(memory))
    groups = tuple(by) if by else ("label",) if "label" in memory.tags else ()
    questions = [dualform.Top(top or 10, per=per), *([dualform.Total(by=groups)] if groups else [])]
    found = {one: _ask(memory, network, one_input(rows, one), layer, questions) for one in index or [0]}
    if as_json:
        print_json({"run": str(run), "inputs": [_document(one, answers) for one, answers in found.items()]})
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
