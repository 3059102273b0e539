"""`dualform suspects`: list the training examples whose label is probably wrong."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualform.cli.app import AsJson, Run, app
from dualform.cli.companions import Recipe
from dualform.cli.output import print_json, quiet
from dualform.companions import importable, named_recipe, own_recipe
from dualform.errors import QueryError, RunExists

if TYPE_CHECKING:
    from dualform.memory import Memory
    from dualform.table import Table

_COLUMNS = {
    "id": "id",
    "label": "label",
    "suggested": "suggested",
    "score": "score",
    "probability": "of label",
    "suggested_probability": "of suggested",
    "visits": "visits",
}


@app.command(epilog="Example: dualform suspects runs/demo --top 50 --csv suspects.csv")
def suspects(
    run: Run,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="How many examples.")] = 20,
    recipe: Recipe = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the list to a file, as CSV.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --csv replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the training examples whose label is probably wrong, the most suspect first.

    At each visit the model, taught by the others, said something of the example; a label is suspect where another one
    was more likely, on average.
    """
    from dualform import terminal

    if csv_file is not None and csv_file.exists() and not overwrite:
        raise RunExists(f"{csv_file} exists already; choose another file with --csv, or replace it with --overwrite")
    out = terminal.console()
    memory = _open(run, recipe)
    with terminal.busy(quiet(terminal.console(stderr=True), as_json), "going through the visits"):
        table = memory.suspects(top)
    names = _class_names(memory)
    if csv_file is not None:
        _write(csv_file, table)
    if as_json:
        print_json(
            {"run": str(run), "suspects": list(table.rows()), "csv": None if csv_file is None else str(csv_file)}
        )
        return
    rows = [[_cell(name, value, names) for name, value in row.items() if name in _COLUMNS] for row in table.rows()]
    out.print(terminal.grid([_COLUMNS[name] for name in table.columns if name in _COLUMNS], rows))
    if any(row["score"] < 0 for row in table.rows()):
        out.print("a score below 0: the label itself was likelier than any other class")
    if csv_file is not None:
        out.print(f"the list is in {csv_file}", soft_wrap=True)


def _open(run: Path, recipe: str | None) -> "Memory":
    """Open a run, with its recipe where its slots are made again."""
    import dualform

    memory = dualform.load(run)
    if recipe is not None:
        return dualform.load(run, recipe=named_recipe(importable(recipe)))
    if all(layer["stored"] for layer in memory.summary()["layers"].values()):
        return memory
    return dualform.load(run, recipe=own_recipe(memory))


def _class_names(memory: "Memory") -> list[str]:
    """Return what the run calls its classes; nothing where it has several tasks, or says nothing."""
    names = memory.about.get("class_names")
    if isinstance(names, dict) and len(names) == 1:
        (names,) = names.values()
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _cell(column: str, value: Any, names: list[str]) -> str:
    if column in ("label", "suggested") and isinstance(value, int) and value < len(names):
        return names[value]
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _write(path: Path, table: "Table") -> None:
    """Write a table as CSV, whole or not at all."""
    import numpy as np

    from dualform.atomic_file import write_atomically

    if not path.parent.is_dir():
        raise QueryError(f"there is no directory {path.parent} for {path.name}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(row.values() for row in table.rows())
    write_atomically(path, [np.frombuffer(text.getvalue().encode(), dtype=np.uint8)])
