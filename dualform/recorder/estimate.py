"""Estimate how many bytes a run will take, and decide how long its chapters are."""

from dataclasses import dataclass

from dualform.recorder.snapshot import State
from dualform.store import Manifest

_MIN_BYTES, _MAX_BYTES = 32 << 20, 256 << 20  # of a chapter


@dataclass(frozen=True)
class Estimate:
    """Bytes on disk: `print(recorder.estimate(steps=3000, batch=128))`."""

    layers: dict[str, int]
    snapshots: int

    @property
    def nbytes(self) -> int:
        """All bytes together."""
        return sum(self.layers.values()) + self.snapshots

    def __str__(self) -> str:
        return f"{self.nbytes / 1e9:.2f} GB"


def chapter_bytes(trained: State) -> int:
    """Return the length of a chapter: the snapshot at its end is a few per cent of it, and two fit into memory."""
    return min(max(40 * _nbytes(trained), _MIN_BYTES), _MAX_BYTES)


def estimate(manifest: Manifest, state: State, trained: State, steps: int, batch: int) -> Estimate:
    """Estimate a run, given its first snapshot and what of it will be in all others."""
    layers = {layer.name: manifest.storage.slot_nbytes(layer) * steps * batch for layer in manifest.layers}
    later = 1 + sum(layers.values()) // chapter_bytes(trained)
    return Estimate(layers, _nbytes(state) + later * _nbytes(trained))


def _nbytes(state: State) -> int:
    return sum(column.nbytes for column in state.values())
