"""Where the bytes of a run live: local files, or memory. Nothing above this room knows which."""

from dualform.store.backend.atomic_file import write_atomically
from dualform.store.backend.base import UNFINISHED, Backend, Blob, Bytes, Lock
from dualform.store.backend.local import LocalFiles
from dualform.store.backend.memory import InMemory
from dualform.store.backend.opening import Where, open_backend

__all__ = [
    "UNFINISHED",
    "Backend",
    "Blob",
    "Bytes",
    "InMemory",
    "LocalFiles",
    "Lock",
    "Where",
    "open_backend",
    "write_atomically",
]
