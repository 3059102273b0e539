"""Options that name the model and the files of a run, for the commands that show it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualform.errors import QueryError

if TYPE_CHECKING:
    from dualform.viewer.opened_run import Companions

Model = Annotated[str | None, typer.Option(metavar="PACKAGE:FACTORY", help="Function or class that makes the model.")]
Recipe = Annotated[
    str | None,
    typer.Option(metavar="PACKAGE:FACTORY", help="Function that makes the run's recipe; default: the run's own."),
]
InputFile = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Inputs, .npy or .safetensors; default: the run's own.")
]
ClassNames = Annotated[
    str | None, typer.Option(metavar="NAME,NAME,...", help="Names of the model's outputs; default: the run's own.")
]
ImageShape = Annotated[
    str | None, typer.Option(metavar="HEIGHTxWIDTH", help="Shape of inputs that are pixels, such as 28x28.")
]


def named(
    model: str | None,
    inputs: Path | None,
    class_names: str | None,
    image_shape: str | None,
    recipe: str | None = None,
) -> "Companions":
    """Return what these options say goes with a run."""
    from dualform.viewer.opened_run import Companions

    names = None if class_names is None else tuple(name.strip() for name in class_names.split(","))
    return Companions(model, inputs, names, None if image_shape is None else _sides(image_shape), recipe)


def _sides(shape: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", shape)
    if match is None:
        raise QueryError(f"--image-shape must be HEIGHTxWIDTH, such as 28x28, not {shape!r}")
    return int(match[1]), int(match[2])
