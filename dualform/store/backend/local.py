"""Keep objects as the files of a directory: written past the cache, read as memory maps, locked by the system."""

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualform.atomic_file import Bytes, flush_directory, make_directory, write_atomically
from dualform.errors import RunExists
from dualform.store.backend.base import ArrayBlob, Blob
from dualform.store.backend.file_lock import FileLock
from dualform.store.schema import LOCK


@dataclass(frozen=True)
class LocalFiles:
    """A directory, which need not be there yet."""

    directory: Path

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
            return {path.name for path in self.directory.iterdir()} - {LOCK}
        except FileNotFoundError:
            return set()

    def open(self, name: str) -> Blob:
        path = self.directory / name
        # Anything else that can be opened may never end, or never begin: pipes, devices.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
                return ArrayBlob(np.empty(0, dtype=np.uint8))
            # "c": private pages, never written back; as a plain array, for a memmap's slices are slow to make
            return ArrayBlob(np.memmap(file, dtype=np.uint8, mode="c").view(np.ndarray))

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        write_atomically(self.directory / name, pieces)

    def delete(self, name: str) -> None:
        path = self.directory / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        flush_directory(self.directory)  # or a power cut might bring it back without what was deleted after it

    def lock(self) -> FileLock:
        return FileLock(self.directory)
