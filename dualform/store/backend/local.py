"""Keep objects as the files of a directory: written past the cache, read as memory maps, locked by the system."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualform.atomic_file import make_directory
from dualform.errors import RunExists
from dualform.store.backend.base import ArrayBlob, Blob
from dualform.store.backend.file_lock import FileLock
from dualform.store.backend.mapped import mapped
from dualform.store.schema import LOCK


@dataclass(frozen=True)
class LocalFiles:
    """A directory, which need not be there yet. Its path is made absolute: the process may change its directory."""

    directory: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", self.directory.absolute())

    def describe(self, name: str | None = None) -> str:
        return str(self.directory if name is None else self.directory / name)

    def exists(self) -> bool:
        return self.directory.is_dir()

    def create(self) -> None:
        if self.directory.exists() and not self.directory.is_dir():
            raise RunExists(f"{self.directory} is a file; a run needs a directory of its own")
        make_directory(self.directory)

    def names(self) -> set[str]:
        try:
            return {path.name for path in self.directory.iterdir() if not path.name.endswith(LOCK)}
        except FileNotFoundError:
            return set()

    def open(self, name: str) -> Blob:
        path = self.directory / name
        # Anything else that can be opened may never end, or never begin: pipes, devices.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # an empty file cannot be mapped
            return ArrayBlob(mapped(file.fileno(), size) if size else np.empty(0, dtype=np.uint8))

    def lock(self, rank: int = 0) -> FileLock:
        return FileLock(self.directory, rank)
