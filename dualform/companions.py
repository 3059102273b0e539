"""Find the model and the files that belong to a run, or that the user has named.

    network = memory.model(make_own(memory))
    inputs = read_inputs(own_inputs(memory))

A run itself may name only code of this package and files in its own directory.
"""

import os
import sys
from importlib import import_module
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualform.errors import QueryError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    package, _, factory = named.partition(":")
    if not package or not factory:
        raise QueryError(f"--model must be PACKAGE:FACTORY, such as my_project.models:mlp, not {named!r}")
    try:
        module = import_module(package)
    except Exception as error:
        raise QueryError(f"cannot import {package!r}: {type(error).__name__}: {error}") from error
    if not hasattr(module, factory):
        raise UnknownName(f"factory in {package} called", factory, (n for n in vars(module) if not n.startswith("_")))
    try:
        made = getattr(module, factory)(**(arguments or {}))
    except Exception as error:
        raise QueryError(f"{named} does not make a model: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise QueryError(f"{named} must make a torch.nn.Module, it made a {type(made).__name__}")
    return made


# Recipes that a run itself may name, with the arguments that it holds.
TRUSTED_RECIPES: tuple[str, ...] = ()


def own_recipe(memory: "Memory", data: Path | None = None) -> "Recipe":
    """Return the recipe that a run names: only this package's code, for opening a run must not run unknown code.

    Args:
        memory: of the run.
        data: directory in which its data are looked for first.
    """
    named = memory.about.get("recipe")
    if named in TRUSTED_RECIPES:
        return named_recipe(str(named))
    hint = f"; the run names {named}, pass it if you trust it" if isinstance(named, str) else ""
    raise QueryError(f"which recipe? pass --recipe PACKAGE:FACTORY, a function that makes it{hint}")


def named_recipe(named: str) -> "Recipe":
    """Make the recipe that a user has named: PACKAGE:FACTORY, a module and a function in it."""
    from dualform.recipe import Recipe

    package, _, factory = named.partition(":")
    if not package or not factory:
        raise QueryError(f"--recipe must be PACKAGE:FACTORY, such as my_project.training:recipe, not {named!r}")
    try:
        module = import_module(package)
    except Exception as error:
        raise QueryError(f"cannot import {package!r}: {type(error).__name__}: {error}") from error
    if not hasattr(module, factory):
        raise UnknownName(f"factory in {package} called", factory, (n for n in vars(module) if not n.startswith("_")))
    try:
        made = getattr(module, factory)()
    except Exception as error:
        raise QueryError(f"{named} does not make a recipe: {type(error).__name__}: {error}") from error
    if not isinstance(made, Recipe):
        raise QueryError(f"{named} must make a dualform.Recipe, it made a {type(made).__name__}")
    return made
