"""What a run holds, decoded: to compare two runs bit by bit, however their shards are cut.

contents("runs/interrupted") == contents("runs/whole")
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store import Layer, Run, Shard, Where

Array = NDArray[Any]
Bits = tuple[str, tuple[int, ...], bytes]

_OF_SLOTS = ("pass_step", "pass_rows", "factors", "value_exponent", "visits")


def contents(path: Where, damaged: bool = False) -> dict[str, Bits]:
    """Return dtype, shape and bytes of everything in a run: ledger, audit, slots and tags, and the state at the end.

    Of a run that may be damaged, all that comes before the damage.
    """
    run = Run(path)
    assert damaged or run.unread is None, run.unread
    chapters = [shard for _, shard in run.chapters]
    arrays = {"end": np.array([f"{run.steps} steps", str(run.ended)])}
    for layer in run.manifest.layers:
        arrays |= {f"ledger/{use.parameter.name}": run.ledger(use.parameter.name) for use in layer.trained}
        arrays[f"audit/{layer.name}"] = _joined(f"audit/{layer.name}", chapters)
        arrays |= _slots(run, layer, [shard for shard in chapters if shard.slots(layer.name)])
    final = run.snapshot(run.steps)
    arrays |= {name: final[name] for name in final.names("state/")}
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()}


def _slots(run: Run, layer: Layer, shards: Sequence[Shard]) -> dict[str, Array]:
    prefix = f"slots/{layer.name}"
    names = [f"{prefix}/{name}" for name in _OF_SLOTS if f"{prefix}/{name}" in shards[0]]
    arrays = {name: _joined(name, shards) for name in names}
    if run.manifest.storage.values:
        arrays[f"{prefix}/values"] = np.concatenate([s.values(layer, slice(0, s.slots(layer.name))) for s in shards])
    index = _key_index(layer, shards)
    for name in ("keys", "key_exponent"):
        if f"{prefix}/{name}" in shards[0]:
            arrays[f"{prefix}/{name}"] = _joined(f"{prefix}/{name}", shards)[index]
    for tag in run.tags:  # as wide as the widest shard needs
        arrays[f"tags/{layer.name}/{tag}"] = np.concatenate([shard.decoded(layer.name, tag) for shard in shards])
    return arrays


def _key_index(layer: Layer, shards: Sequence[Shard]) -> Array:
    """Return for each slot the row of its key among those of all shards."""
    name, first, parts = f"slots/{layer.name}/key_index", 0, []
    for shard in shards:
        rows = shard.key_rows(layer.name)
        parts.append(shard[name] if name in shard else first + np.arange(rows))
        first += rows
    return np.concatenate(parts)


def _joined(name: str, shards: Sequence[Shard]) -> Array:
    return np.concatenate([shard[name] for shard in shards])
