"""Where the bytes of a run live: local files, or memory. Nothing above this room knows which."""

from dualform.store.backend.base import Backend, Blob, Lock
from dualform.store.backend.local import LocalFiles
from dualform.store.backend.memory import InMemory
from dualform.store.backend.opening import Where, open_backend

__all__ = [
    "Backend",
    "Blob",
    "InMemory",
    "LocalFiles",
    "Lock",
    "Where",
    "open_backend",
]
