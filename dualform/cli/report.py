"""`dualform report`: save the viewer's page about some inputs of a run as one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.cli.app import Run, app
from dualform.cli.companions import ClassNames, ImageShape, InputFile, Model, named
from dualform.errors import QueryError, RunExists

if TYPE_CHECKING:
    from dualform.viewer.opened_run import OpenedRun
    from dualform.viewer.report import ReportInputs


@app.command(epilog="Example: dualform report runs/demo -o demo.html --index 3 --index 8")
def report(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")],
    index: Annotated[
        list[int] | None,
        typer.Option(metavar="I", help="Which input, from 0; repeatable; default: mistakes and others."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="For a language model: a prompt; repeatable.")
    ] = None,
    model: Model = None,
    inputs: InputFile = None,
    class_names: ClassNames = None,
    image_shape: ImageShape = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Save the page of `dualform view` about some inputs as one HTML file that needs no server and no network."""
    if out.exists() and not overwrite:
        raise RunExists(f"{out} exists already; choose another file with --out, or replace it with --overwrite")
    if not out.parent.is_dir():
        raise QueryError(f"there is no directory {out.parent} for {out.name}")
    from dualform import terminal
    from dualform.viewer import report as reports
    from dualform.viewer.api import Api
    from dualform.viewer.opened_run import open_run

    opened = open_run(run, named(model, inputs, class_names, image_shape))
    chosen = _chosen(opened, index, prompt)
    api = Api(opened, prepare=False)
    console = terminal.console()
    with terminal.busy(console, "preparing") as at:
        api.jobs.run(at)
    with terminal.progress(console, "answering", len(list(reports.requests_about(api, chosen)))) as done:
        content = reports.html(reports.collect(api, chosen, done))
    reports.write(out, content)
    console.print(f"{out} ({len(content.encode()) / 1e6:,.1f} MB): open it in a browser")


def _chosen(opened: "OpenedRun", index: list[int] | None, prompts: list[str] | None) -> "ReportInputs":
    """Return the inputs the user named, if they exist; else some that suit the run."""
    from dualform.viewer.passages import example_prompt
    from dualform.viewer.report import ReportInputs, default_inputs
    from dualform.viewer.requests import IndexedInput, PromptInput
    from dualform.viewer.resolved_input import resolve_input

    wanted: list[IndexedInput | PromptInput] = [IndexedInput(number) for number in index or ()]
    wanted += [PromptInput(prompt) for prompt in prompts or ()]
    if "spotlight" not in opened.cannot:
        for request_input in wanted:
            resolve_input(opened, request_input)  # raises for what there is not, before anything takes time
    if wanted:
        return ReportInputs(tuple(index or ()), tuple(prompts or ()))
    return default_inputs(opened) if opened.text is None else ReportInputs(prompts=[example_prompt(opened.text)])
