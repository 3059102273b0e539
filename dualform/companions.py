"""What goes with a run: its model and its files, or those that the user named.

    network = memory.model(make_own(memory))
    inputs = read_inputs(own_inputs(memory))

A run by itself may name only code of this package and files in its own directory.
"""

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

# Models a run may name by itself: what this package's own experiments train.
OWN = (
    "dualform.experiments.demo:network",
    "dualform.experiments.training:paper_network",
    "dualform.experiments.training:small_network",
    "dualform.experiments.language.network:LanguageModel",
)


def own_model(memory: "Memory") -> str:
    """The model a run names by itself. Only this package's code: opening a run must not run a stranger's."""
    named = memory.about.get("model")
    if named in OWN:
        return str(named)
    hint = f"; the run says {named}, pass it if you trust it" if isinstance(named, str) else ""
    raise QueryError(f"which model? pass --model PACKAGE:FACTORY, a function or class that makes it{hint}")


def make_own(memory: "Memory") -> "nn.Module":
    """The model a run names by itself, with the sizes it says."""
    arguments = memory.about.get("arguments", {})
    if not isinstance(arguments, dict) or not all(isinstance(size, int | float) for size in arguments.values()):
        raise QueryError("the run says what its model is made with, but not in numbers; pass --model PACKAGE:FACTORY")
    return make(own_model(memory), arguments)


def own_inputs(memory: "Memory") -> Path:
    return own_file(memory, "inputs", "pass --input FILE.npy or FILE.safetensors")


def own_file(memory: "Memory", what: str, instead: str) -> Path:
    """A file that a run names as its own, in its own directory."""
    named = memory.about.get(what)
    if not isinstance(named, str):
        raise QueryError(f"which {what}? the run has none of its own: {instead}")
    path = memory.path / named
    if not _is_name(named) or not _is_inside(path, memory.path) or (path.exists() and not path.is_file()):
        raise QueryError(f"the run names {named!r} as its {what}, which is no file of its own: {instead}")
    return path


def _is_name(named: str) -> bool:
    """Whether it is a name and not a way, and one that every system takes."""
    return (
        named not in ("", ".", "..") and named.isprintable() and not {*named} & {*"/\\:"} and len(named.encode()) < 256
    )


def _is_inside(path: Path, directory: Path) -> bool:
    """Whether it is in the directory, should it be a link."""
    return Path(realpath(path)).is_relative_to(realpath(directory))


def importable(named: str) -> str:
    """The user named it, so the current directory counts, as it does for `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return named


def in_precision_of(network: "nn.Module", rows: "Tensor") -> "Tensor":
    """Inputs in the model's floating-point precision; whole numbers, such as tokens, as they are."""
    import torch

    floating = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    return rows.to(floating) if rows.is_floating_point() else rows


def output_for(network: "nn.Module", rows: "Tensor") -> Any:
    """What a model says of inputs, without gradients; inputs that do not fit the model raise."""
    import torch

    try:
        with torch.no_grad():
            return network(rows)
    except Exception as error:
        shape = f"{tuple(rows.shape[1:])} of {str(rows.dtype).removeprefix('torch.')}"
        raise QueryError(f"the model does not take inputs of shape {shape}: {error}") from error


def make(named: str, arguments: "Mapping[str, float] | None" = None) -> "nn.Module":
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
