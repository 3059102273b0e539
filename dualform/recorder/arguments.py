"""Check what `dualform.record` is called with, and say in an error what to pass instead."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dualform.errors import RecordingError
from dualform.store import Backend, InMemory

_CALL = "dualform.record(model, optimizer, path)"
_WRAPPERS = "AcceleratedOptimizer", "LightningOptimizer"  # of Accelerate and Lightning, which are not imported for it


def check_model(model: Any) -> None:
    """Raise unless a model is one."""
    if isinstance(model, Optimizer):
        raise RecordingError(f"the model comes first, and then its optimiser: {_CALL}; got {_name(model)} as the model")
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise RecordingError(f"{_CALL} needs a model, got the class {model.__name__}: make one, {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise RecordingError(
            f"{_CALL} needs a model, an nn.Module, got {_name(model)}. Pass the model itself, not its parameters; "
            "several models go into one nn.ModuleList"
        )


def as_optimizers(optimizer: Any) -> list[Optimizer]:
    """Return the optimisers; raise for anything else."""
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        name = optimizer.__name__
        raise RecordingError(
            f"{_CALL} needs an optimiser, got the class {name}: make one, {name}(model.parameters(), ...)"
        )
    several = isinstance(optimizer, Iterable) and not isinstance(optimizer, nn.Module)
    optimizers = [_unwrapped(one) for one in (optimizer if several else [optimizer])]
    for one in optimizers:
        if isinstance(one, LRScheduler):
            raise RecordingError(f"{_CALL} needs an optimiser, got {_name(one)}: pass scheduler.optimizer")
        if not isinstance(one, Optimizer):
            raise RecordingError(
                f"{_CALL} needs a torch.optim.Optimizer, or a list of them, got {_name(one)}: pass what has the "
                "`step` that trains the model"
            )
    if not optimizers:
        raise RecordingError(f"{_CALL} needs the optimiser that trains the model, got none")
    return optimizers


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimiser that a trainer's wrapper, with no rule of its own, steps."""
    return optimizer.optimizer if type(optimizer).__name__ in _WRAPPERS else optimizer


def as_place(path: Any) -> Path | Backend:
    """Return where the run goes to."""
    if isinstance(path, Backend):
        return path
    if not isinstance(path, str | os.PathLike):
        raise RecordingError(
            f"path must be the name of a directory, or a backend such as dualform.store.InMemory(), got {_name(path)}"
        )
    return Path(path).absolute()  # the process may change its directory


def check_shared(where: Path | Backend, merge: str | None) -> None:
    """Raise for what several processes cannot record together."""
    if isinstance(where, InMemory):
        raise RecordingError("several processes cannot share a run in memory: pass a directory that all of them see")
    if merge is not None:
        raise RecordingError("several processes do not sum up keys together: leave out merge, or record in one process")


def _name(thing: Any) -> str:
    return "None" if thing is None else type(thing).__name__
