"""The application that commands are added to, options that they share, and how errors are shown.

    @app.command(epilog="Example: dualform info runs/demo")
    def info(run: Run, as_json: AsJson = False) -> None: ...

A new module of commands is imported in `dualform/cli/__init__.py`.
"""

import codecs
import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dualform import __version__
from dualform.errors import DualformError

_IN_ASCII = "dualform"  # name of the way to handle what cannot be encoded
_DRAWN = dict(zip("█░▀▄─━╸╺│…–×·", "#-'.----|.-x.", strict=True)) | dict.fromkeys("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "*")


class _Commands(TyperGroup):
    """Shows an error of the user as one line, and ends with an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, on any terminal: what its encoding does not have is drawn in ASCII, or escaped."""
        codecs.register_error(_IN_ASCII, _in_ascii)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=_IN_ASCII)
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default", UserWarning)
                # As one line, without the line of code that caused it.
                warnings.showwarning = lambda message, *_, **__: print(f"dualform: {message}", file=sys.stderr)
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `dualform ... | head` is no error; typer handles it
        except DualformError as error:
            _fail(str(error), 1)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
        except KeyboardInterrupt:
            _fail("interrupted", 130)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding does not have: bars and pictures by signs that look alike, names by their escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_DRAWN.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in missing), error.end


def _fail(reason: str, code: int) -> None:
    print(f"dualform: {' '.join(reason.split())}", file=sys.stderr)
    raise typer.Exit(code)


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, epilog="Begin with: dualform demo",
)  # fmt: skip

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a recorded run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def main() -> None:
    app(prog_name="dualform")


def _show_version(requested: bool) -> None:
    if requested:
        print(f"dualform {__version__}")
        raise typer.Exit


@app.callback()
def _dualform(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Which training examples are behind this prediction? The exact dual form of PyTorch layers."""
