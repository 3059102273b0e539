"""Find the model, the recipe and the files that belong to a run, or that the user has named.

    network = memory.model(make_own(memory))
    memory = dualform.load(memory.path, recipe=own_recipe(memory))
    inputs = read_inputs(own_inputs(memory))

A run itself may name only code of this package and files in its own directory.
"""

import os
import sys
from importlib import import_module
from inspect import signature
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from dualform.errors import DataError, QueryError, UnknownName, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from dualform.memory import Memory
    from dualform.recipe import Recipe

_MAX_HOLE_BYTES = 64 << 20

# Models that a run itself may name: those of this package's experiments.
TRUSTED_MODELS = (
    "dualform.experiments.demo:network",
    "dualform.experiments.training:paper_network",
    "dualform.experiments.training:small_network",
    "dualform.experiments.cifar.network:cifar_network",
    "dualform.experiments.cifar.network:digits_network",
    "dualform.experiments.language.network:LanguageModel",
)

# And recipes: functions of arguments that are checked, and of where data are, which no run says.
TRUSTED_RECIPES = (
    "dualform.experiments.demo:recipe",
    "dualform.experiments.recipes:image_recipe",
    "dualform.experiments.recipes:convolutional_recipe",
    "dualform.experiments.recipes:language_recipe",
)
_NAME_RECIPE = "pass --recipe PACKAGE:FACTORY, a function that makes it"
_MAX_PHASES = 16


def own_model(memory: "Memory") -> str:
    """Return the model that a run names: only this package's code, for opening a run must not run unknown code."""
    model = memory.about.get("model")
    if model in TRUSTED_MODELS:
        return str(model)
    hint = f"; the run names {model}, pass it if you trust it" if isinstance(model, str) else ""
    raise QueryError(f"which model? pass --model PACKAGE:FACTORY, a function or class that makes it{hint}")


def make_own(memory: "Memory") -> "nn.Module":
    """Make the model that a run names, with the arguments that the run holds.

    It is made without memory first: what a run says may not cost more than the parameters that it holds.
    """
    import torch

    arguments = memory.about.get("arguments", {})
    if not isinstance(arguments, dict) or not all(isinstance(size, int | float) for size in arguments.values()):
        raise QueryError("the arguments of the run's model are not all numbers; pass --model PACKAGE:FACTORY")
    named = own_model(memory)
    with torch.device("meta"):
        outline = make(named, arguments)
    memory.check_model(outline)
    return make(named, arguments)


def own_recipe(memory: "Memory", data: Path | None = None) -> "Recipe":
    """Return the recipe that a run names: only this package's code, with arguments that the run holds.

    Args:
        memory: of the run.
        data: where to look for data sets first; they are downloaded if they are nowhere.
    """
    import torch

    named, arguments = memory.about.get("recipe"), memory.about.get("recipe_arguments")
    if named not in TRUSTED_RECIPES:
        hint = f"; the run names {named}, pass it if you trust it" if isinstance(named, str) else ""
        raise QueryError(f"which recipe? {_NAME_RECIPE}{hint}")
    package, _, factory = str(named).partition(":")
    make_recipe = getattr(import_module(package), factory)
    checked = _checked_arguments(make_recipe, arguments)
    places = {"data": data} if "data" in signature(make_recipe).parameters else {}
    try:
        recipe: Recipe = make_recipe(**checked, **places)
        with torch.device("meta"):  # as in make_own
            memory.check_model(recipe.model())
    except DataError:
        raise
    except Exception as error:  # torch has its own for sizes that are none
        raise QueryError(f"the recipe that the run names is not its own: {error}; {_NAME_RECIPE}") from error
    return recipe


def _checked_arguments(factory: "Callable[..., Recipe]", arguments: Any) -> dict[str, Any]:
    """Return what a run says of its recipe; raise unless these are the arguments of the factory, each of its type."""
    expected = {name: kind for name, kind in get_type_hints(factory).items() if name not in ("data", "return")}
    if not isinstance(arguments, dict) or {*arguments} != {*expected}:
        raise QueryError(
            f"the recipe that the run names needs {listing(expected)}, which it does not hold: {_NAME_RECIPE}"
        )
    for name, kind in expected.items():
        if not _is_argument(arguments[name], kind):
            raise QueryError(f"the run's recipe has a {name!r} that is none: {_NAME_RECIPE}")
    return arguments


def _is_argument(value: Any, kind: Any) -> bool:
    """Return whether a value that a run holds is a name, a small count, or a list of them."""
    if kind is str:
        return isinstance(value, str)
    if kind is int:
        return type(value) is int and 0 <= value < 1 << 31
    return isinstance(value, list) and 0 < len(value) <= _MAX_PHASES and all(_is_argument(one, int) for one in value)


def own_inputs(memory: "Memory") -> Path:
    """Return the file of test inputs that a run names."""
    return own_file(memory, "inputs", "pass --input FILE.npy or FILE.safetensors")


def own_file(memory: "Memory", what: str, instead: str) -> Path:
    """Return a file in a run's directory that the run names.

    Args:
        memory: of the run.
        what: entry of `about` that names the file.
        instead: what the user can do if there is none, for the error.
    """
    name = memory.about.get(what)
    if not isinstance(name, str):
        raise QueryError(f"which {what}? the run names none of its own: {instead}")
    path = memory.path / name
    # A name without directories, which every system allows; and should it be a link, then to a file beside it.
    allowed = name.isprintable() and not {*name} & {*"/\\:"} and len(name.encode()) < 256
    inside = allowed and Path(realpath(path)).is_relative_to(realpath(memory.path))
    if name in ("", ".", "..") or not inside or (path.exists() and not path.is_file()):
        raise QueryError(f"the run names {name!r} as its {what}, which is no file of its own: {instead}")
    if path.exists() and _mostly_holes(path.stat()):
        raise QueryError(f"the run names {name!r} as its {what}, which is mostly holes, and no data: {instead}")
    return path


def _mostly_holes(file: os.stat_result) -> bool:
    """Return whether a file says it is far longer than what the disk holds of it, be it compressed."""
    held: int = 512 * getattr(file, "st_blocks", file.st_size)
    return file.st_size > max(_MAX_HOLE_BYTES, 100 * held)


def importable(named: str) -> str:
    """Let a model that the user named be imported from the current directory, as with `python -m`; return its name."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return named


def in_precision_of(network: "nn.Module", rows: "Tensor") -> "Tensor":
    """Convert inputs to the model's floating-point precision; integers, such as tokens, stay as they are."""
    import torch

    floating = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    return rows.to(floating) if rows.is_floating_point() else rows


def output_for(network: "nn.Module", rows: "Tensor") -> Any:
    """Return a model's output for inputs, without gradients; raise a QueryError if the inputs do not fit."""
    import torch

    try:
        with torch.no_grad():
            return network(rows)
    except Exception as error:
        shape = f"{tuple(rows.shape[1:])} of {str(rows.dtype).removeprefix('torch.')}"
        raise QueryError(f"the model does not take inputs of shape {shape}: {error}") from error


def make(named: str, arguments: "Mapping[str, float] | None" = None) -> "nn.Module":
    """Make a model.

    Args:
        named: PACKAGE:FACTORY, a module and a function or class in it.
        arguments: passed to the factory by name.
    """
    from torch import nn

    made = _called(named, arguments or {}, "model", "my_project.models:mlp")
    if not isinstance(made, nn.Module):
        raise QueryError(f"{named} must make a torch.nn.Module, it made a {type(made).__name__}")
    return made


def named_recipe(named: str) -> "Recipe":
    """Make a recipe.

    Args:
        named: PACKAGE:FACTORY, a module and a function in it that is called without arguments.
    """
    from dualform import Recipe

    made = _called(named, {}, "recipe", "my_project.training:recipe")
    if not isinstance(made, Recipe):
        raise QueryError(f"{named} must make a dualform.Recipe, it made a {type(made).__name__}")
    return made


def _called(named: str, arguments: "Mapping[str, Any]", what: str, example: str) -> Any:
    """Import a factory that the user has named, and call it."""
    package, _, factory = named.partition(":")
    if not package or not factory:
        raise QueryError(f"--{what} must be PACKAGE:FACTORY, such as {example}, not {named!r}")
    try:
        module = import_module(package)
    except Exception as error:
        raise QueryError(f"cannot import {package!r}: {type(error).__name__}: {error}") from error
    if not hasattr(module, factory):
        raise UnknownName(f"factory in {package} called", factory, (n for n in vars(module) if not n.startswith("_")))
    try:
        return getattr(module, factory)(**arguments)
    except Exception as error:
        raise QueryError(f"{named} does not make a {what}: {type(error).__name__}: {error}") from error
