"""`dualform view`: show a run in the browser."""

import os
import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from dualform.cli.app import Run, app
from dualform.cli.companions import ClassNames, ImageShape, InputFile, Model, Recipe, named
from dualform.errors import MissingExtra


@app.command(epilog="Example: dualform view runs/demo --port 9000 --no-browser")
def view(
    run: Run,
    model: Model = None,
    inputs: InputFile = None,
    class_names: ClassNames = None,
    image_shape: ImageShape = None,
    recipe: Recipe = None,
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Address to listen at; with 0.0.0.0 other machines can connect, too.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Port; default: the first free one from 8765.")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address without opening a browser.")
    ] = False,
) -> None:
    """Show a run in the browser: its inputs, the training slots behind each prediction, and predictions without them.

    Serves a page on this machine until Ctrl-C.
    """
    for package in ("starlette", "uvicorn"):  # before the run is read, which may take a while
        try:
            import_module(package)
        except ImportError:
            raise MissingExtra(package, "view") from None
    from dualform.viewer.port import open_port

    with open_port(host, port) as opened:  # before the run is read, for it may be taken
        from dualform.viewer.api import Api
        from dualform.viewer.opened_run import open_run
        from dualform.viewer.serve import serve

        shown = open_run(run, named(model, inputs, class_names, image_shape, recipe))
        serve(run, Api(shown), opened, browser=not no_browser)
    _leave()


def _leave() -> NoReturn:
    """Exit at once: threads may still answer a question nobody waits for, and cannot be stopped. Nothing is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
