"""Whether a recording fits the run it is to go on with: the same layers, and the state of that very step.

Everything is compared bit by bit. A weight that was restored a little off would make every later answer a
little off, and so would a momentum that was forgotten.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import CannotResume
from dualform.store import Column, Manifest, Resumption, RunWriter, Shard, Where
from dualform.store.schema import STATE

Array = NDArray[Any]

_COMPARED = ("parameters/", "optimizers/")  # buffers are in no dual form, and any forward pass may change them


def go_on(
    where: Where, step: int, manifest: Manifest, state: Mapping[str, Column], chapter_bytes: int
) -> tuple[RunWriter, dict[str, str] | None]:
    """A writer that goes on after a step, and the kinds of the tags so far. Nothing is dropped unless all fits."""
    found = Resumption(where, step)
    backend = found.run.backend
    try:
        _check_same_recording(found.run.manifest, manifest, backend.describe())
        _check_restored(found.snapshot, state, manifest, backend.describe())
        writer = RunWriter(backend, found.run.manifest, found.lock, chapter_bytes, found.kept)  # which reads their keys
        found.cut()
        return writer, found.kinds
    except BaseException:
        found.lock.release()
        raise


def _check_same_recording(found: Manifest, given: Manifest, where: str) -> None:
    """A run goes on as it was begun."""
    for what in ("layers", "storage", "optimizers"):
        before, now = getattr(found, what), getattr(given, what)
        if before != now:
            raise CannotResume(f"{where} was begun with other {what}: {_words(before)}; now there is {_words(now)}")


def _words(what: Any) -> str:
    return ", ".join(map(str, what)) if isinstance(what, tuple) else str(what)


def _check_restored(snapshot: Shard, state: Mapping[str, Column], manifest: Manifest, where: str) -> None:
    """Compare a model and its optimisers with how the run left them; raises with the layer and the distance."""
    stored = {name.removeprefix(STATE): name for name in snapshot.names(STATE)}
    there = {short: (snapshot.dtype(name), snapshot[name]) for short, name in stored.items() if _compared(short)}
    given = {name: (column.dtype_code, column.blocks[0]) for name, column in state.items() if _compared(name)}
    for name in sorted({*there, *given}, key=_weights_first):
        fault = _fault(there.get(name), given.get(name))
        if fault:
            raise CannotResume(
                f"{_in_words(name, manifest)} {fault} at step {snapshot.info.last_step} of {where}: "
                "restore the model and the optimiser from the checkpoint taken at that step, and record then"
            )


def _compared(name: str) -> bool:
    return name.startswith(_COMPARED)


def _weights_first(name: str) -> tuple[bool, str]:
    return not name.startswith("parameters/"), name


def _fault(there: tuple[str, Array] | None, given: tuple[str, Array] | None) -> str | None:
    """How a tensor differs from the run's, in words; None: in no bit."""
    if there is None:
        return "is there, and was not"
    if given is None:
        return "is missing, and was there"
    if (there[0], there[1].shape) != (given[0], given[1].shape):
        return f"is {given[0]} of shape {given[1].shape}, it was {there[0]} of shape {there[1].shape}"
    if np.array_equal(_bits(there[1]), _bits(given[1])):
        return None
    before, now = _numbers(*there), _numbers(*given)
    distance, size = float(np.linalg.norm(now - before)), float(np.linalg.norm(before))
    return f"is off by {distance / size if size else distance:.1e} of the size it had"


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _numbers(dtype: str, array: Array) -> NDArray[np.float64]:
    if dtype == "BF16":  # which is the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64).reshape(-1)


def _in_words(name: str, manifest: Manifest) -> str:
    """`layer '0': the restored '0.weight'`, or the momentum of it."""
    kind, _, rest = name.partition("/")
    parameter, what = rest, "the restored"
    if kind == "optimizers":
        owned, _, entry = rest.partition("/")[2].rpartition("/")
        parameter, what = owned, f"the optimiser's {entry} of"
    layer = next((one.name for one in manifest.layers for use in one.uses if use.parameter.name == parameter), None)
    return f"{'' if layer is None else f'layer {layer!r}: '}{what} {parameter!r}"
