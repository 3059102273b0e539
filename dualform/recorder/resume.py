"""Resume a run, if a recording fits it: the same layers, and the state of that very step.

Everything is compared bit by bit. A weight that was restored a little off would make every later answer a
little off, and so would a momentum that was forgotten.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.errors import CannotResume
from dualform.recorder.world import World
from dualform.store import Column, Manifest, Resumption, RunWriter, Shard, Where
from dualform.store.schema import STATE, STATE_BUFFERS

Array = NDArray[Any]

_COMPARED = ("parameters/", "optimizers/")  # buffers are in no dual form, and any forward pass may change them


class Resumed(NamedTuple):
    """A run that goes on."""

    writer: RunWriter
    tag_kinds: dict[str, str] | None
    accounted: frozenset[str] | None  # parameters that are accounted for; None: there was no step yet
    buffers: dict[str, Array]  # as the last snapshot has them


def resume_run(
    where: Where, step: int, manifest: Manifest, state: Mapping[str, Column], chapter_bytes: int, world: World
) -> Resumed:
    """Return a writer that continues after a step, and what was decided so far; drop nothing unless all fits.

    Each process of a training goes on with its own chain of shards, and nothing is dropped unless all fits in all.
    """
    resumption = world.all(lambda: Resumption(where, step, world.rank, world.size))
    run, backend = resumption.run, resumption.run.backend
    try:
        world.all(lambda: _check_fits(resumption, state, manifest))
        writer = RunWriter(
            backend, run.manifest, resumption.lock, chapter_bytes, resumption.kept, world.rank
        )  # reads their keys
        world.all(resumption.cut)
        snapshot = resumption.snapshot
        names = snapshot.snapshot_names(STATE_BUFFERS)
        buffers = {name.removeprefix(STATE_BUFFERS): snapshot.snapshot_holder(name)[name] for name in names}
        return Resumed(writer, resumption.kinds, run.accounted if step else None, buffers)
    except BaseException:
        resumption.lock.release()
        raise


def _check_fits(resumption: Resumption, state: Mapping[str, Column], manifest: Manifest) -> None:
    """Raise unless the run can go on as it was begun, from the state it was left in."""
    where = resumption.run.backend.describe()
    for what in ("layers", "storage", "optimizers"):
        before, now = getattr(resumption.run.manifest, what), getattr(manifest, what)
        if before != now:
            raise CannotResume(f"{where} was begun with other {what}: {_words(before)}; now they are {_words(now)}")
    _check_restored(resumption.snapshot, state, manifest, where)


def _words(what: Any) -> str:
    return ", ".join(map(str, what)) if isinstance(what, tuple) else str(what)


def _check_restored(snapshot: Shard, state: Mapping[str, Column], manifest: Manifest, where: str) -> None:
    """Compare a model and its optimisers with how the run left them; raise with the layer and the distance."""
    stored = {}
    for name in snapshot.snapshot_names(STATE):
        if name.removeprefix(STATE).startswith(_COMPARED):
            holder = snapshot.snapshot_holder(name)
            stored[name.removeprefix(STATE)] = holder.dtype(name), holder[name]
    restored = {
        name: (column.dtype_code, column.blocks[0]) for name, column in state.items() if name.startswith(_COMPARED)
    }
    weights_first = sorted({*stored, *restored}, key=lambda name: (not name.startswith("parameters/"), name))
    for name in weights_first:
        difference = _difference(stored.get(name), restored.get(name))
        if difference:
            raise CannotResume(
                f"{_in_words(name, manifest)} {difference} at step {snapshot.info.last_step} of {where}: "
                "restore the model and the optimiser from the checkpoint taken at that step, and record then"
            )


def _difference(stored: tuple[str, Array] | None, restored: tuple[str, Array] | None) -> str | None:
    """Say how a restored tensor differs from the run's; None: in no bit."""
    if stored is None:
        return "is there, and was not"
    if restored is None:
        return "is missing, and was there"
    if (stored[0], stored[1].shape) != (restored[0], restored[1].shape):
        return f"is {restored[0]} of shape {restored[1].shape}, it was {stored[0]} of shape {stored[1].shape}"
    if np.array_equal(_bits(stored[1]), _bits(restored[1])):
        return None
    before, now = _numbers(*stored), _numbers(*restored)
    distance, size = float(np.linalg.norm(now - before)), float(np.linalg.norm(before))
    return f"is off by {distance / size if size else distance:.1e} of the size it had"


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _numbers(dtype: str, array: Array) -> NDArray[np.float64]:
    if dtype == "BF16":  # which is the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64).reshape(-1)


def _in_words(name: str, manifest: Manifest) -> str:
    """Name a tensor of the state: `layer '0': the restored '0.weight'`, or the momentum of it."""
    kind, _, rest = name.partition("/")
    parameter, what = rest, "the restored"
    if kind == "optimizers":
        owned, _, entry = rest.partition("/")[2].rpartition("/")
        parameter, what = owned, f"the optimiser's {entry} of"
    users = [layer.name for layer in manifest.layers for use in layer.uses if use.parameter.name == parameter]
    return f"{f'layer {users[0]!r}: ' if users else ''}{what} {parameter!r}"
