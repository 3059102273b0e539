"""Keep objects in the memory of this process: for tests, and for runs that nobody wants to keep.

    backend = InMemory()
    with dualform.record(model, optimizer, backend): ...
    memory = dualform.load(backend)

Nothing of it outlives the process.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from dualform.atomic_file import Bytes
from dualform.errors import RunExists
from dualform.store.backend.base import ArrayBlob, Blob


class InMemory:
    """A dictionary of bytes. `label` is what messages call it."""

    def __init__(self, label: str = "memory") -> None:
        self._label = label
        self._objects: dict[str, bytes] = {}
        self._turns: dict[int, threading.Lock] = defaultdict(threading.Lock)  # by rank

    def describe(self, name: str | None = None) -> str:
        return self._label if name is None else f"{self._label}:{name}"

    def exists(self) -> bool:
        return True

    def create(self) -> None:
        """Do nothing: there is nothing to be made."""

    def names(self) -> set[str]:
        return {*self._objects}

    def open(self, name: str) -> Blob:
        """Return a copy, which may be written to."""
        if name not in self._objects:
            raise FileNotFoundError(f"there is no {self.describe(name)}")
        return ArrayBlob(np.frombuffer(self._objects[name], dtype=np.uint8).copy())

    def lock(self, rank: int = 0) -> "MemoryLock":
        return MemoryLock(self._turns[rank], self._label, self._objects)


class MemoryLock:
    """Keeps a second writer of this process out."""

    def __init__(self, turn: threading.Lock, label: str, objects: dict[str, bytes]) -> None:
        if not turn.acquire(blocking=False):
            raise RunExists(f"another recorder is recording to {label}")
        self._turn, self._objects, self._released, self._process = turn, objects, False, os.getpid()

    @property
    def held(self) -> bool:
        return not self._released and self._process == os.getpid()

    @property
    def removed(self) -> bool:
        """Return False: objects exist for as long as somebody refers to them."""
        return False

    @property
    def moved(self) -> bool:
        """Return False: there is nowhere else."""
        return False

    def names(self) -> set[str]:
        return {*self._objects}

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        self._objects[name] = b"".join(piece.tobytes() for piece in pieces)

    def delete(self, name: str) -> None:
        if name not in self._objects:
            raise FileNotFoundError(f"there is no {name}")
        del self._objects[name]

    def release(self) -> None:
        if self.held:
            self._released = True
            self._turn.release()
