"""Open the backend that a user names: a path is a directory of local files."""

from os import PathLike
from pathlib import Path

from dualform.store.backend.base import Backend
from dualform.store.backend.local import LocalFiles

Where = str | PathLike[str] | Backend


def open_backend(where: Where) -> Backend:
    """Return the backend at a path, which need not be there yet; a backend is returned as it is."""
    return where if isinstance(where, Backend) else LocalFiles(Path(where))
