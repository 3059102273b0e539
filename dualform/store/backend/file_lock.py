"""Let one writer at a time into a run, and let nobody else write.

The operating system holds the lock for as long as the process lives, so nothing of a process that was
killed is ever in the way: the mere existence of a lock file means nothing.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import sleep
from weakref import WeakSet

from dualform.atomic_file import Bytes, OpenDirectory
from dualform.errors import RunExists, StorageError
from dualform.store.schema import LOCK, lock_name

_TRIES, _PAUSE_SECONDS = 5, 0.05


class FileLock:
    """Keeps a second writer out of a run, and writes to it: to the directory that was locked, wherever that is now."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        directory, name = None, lock_name(rank)
        try:
            directory = OpenDirectory(path)
            self._handle = directory.open(name, os.O_RDWR)
        except OSError as error:
            if directory is not None:
                directory.close()
            raise StorageError(f"cannot write {path / name}: {error.strerror or error}") from error
        self._directory = directory
        try:
            _lock_soon(self._handle)
        except OSError as error:
            self._close()
            if isinstance(error, BlockingIOError | PermissionError):
                raise RunExists(f"another process is recording to {path}") from None
            raise StorageError(f"cannot lock {path / name}: {error.strerror or error}") from error
        _held.add(self)

    @property
    def held(self) -> bool:
        """Whether this process holds it; a process forked from it does not."""
        return self in _held

    @property
    def removed(self) -> bool:
        """Whether somebody has deleted the directory, or everything in it."""
        return os.fstat(self._handle).st_nlink == 0

    @property
    def moved(self) -> bool:
        """Whether the directory has another name by now."""
        return self._directory.moved

    def names(self) -> set[str]:
        return {name for name in self._directory.names() if not name.endswith(LOCK)}

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        self._directory.write(name, pieces)

    def delete(self, name: str) -> None:
        self._directory.delete(name)

    def release(self) -> None:
        if self.held:
            _held.remove(self)
            self._close()

    def _close(self) -> None:
        with suppress(OSError):  # it is given back whatever closing says, and nothing was written to it
            os.close(self._handle)
        self._directory.close()


_held: WeakSet[FileLock] = WeakSet()


def _lock_soon(handle: int) -> None:
    """Try several times: a worker that was forked a moment before its parent was killed may still have to let go."""
    for _ in range(_TRIES):
        with suppress(BlockingIOError, PermissionError):
            return _lock(handle)
        sleep(_PAUSE_SECONDS)
    return _lock(handle)


def _release_in_child() -> None:
    """Release the lock a child shares with its parent: a data loader's worker must not outlive a training with it."""
    for lock in list(_held):
        lock.release()


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    os.register_at_fork(after_in_child=_release_in_child)

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
