"""Estimate how many bytes a run will take, and decide how long its chapters are."""

from collections.abc import Mapping
from dataclasses import dataclass

from dualform.store import Column, Manifest

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


def chapter_bytes(state: Mapping[str, Column]) -> int:
    """Return the length of a chapter: the snapshot at its end is a few per cent of it, and two fit into memory."""
    return min(max(40 * _nbytes(state), _MIN_BYTES), _MAX_BYTES)


def estimate(manifest: Manifest, state: Mapping[str, Column], steps: int, batch: int) -> Estimate:
    layers = {layer.name: manifest.storage.slot_nbytes(layer) * steps * batch for layer in manifest.layers}
    chapters = 2 + sum(layers.values()) // chapter_bytes(state)
    return Estimate(layers, chapters * _nbytes(state))


def _nbytes(state: Mapping[str, Column]) -> int:
    return sum(column.nbytes for column in state.values())
