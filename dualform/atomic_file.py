"""Write local files atomically: after a crash each is complete or not there.

    with OpenDirectory(Path("runs/x")) as directory:
        directory.write("a", [content])
        directory.delete("b")

A file is written under a temporary name, flushed to the disk, renamed, and its directory flushed. A directory stays
the one that was opened, whatever its name is by now. Every call that changes the disk is one of `os`, where tests let
each of them fail.
"""

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dualform.errors import StorageError

if sys.platform != "win32":
    import fcntl

Bytes = NDArray[np.uint8]

UNFINISHED = ".tmp"  # suffix of a file that a killed process did not finish
_BUFFER_BYTES = 4 << 20
_ALIGNMENT_BYTES = 4096
_BY_HANDLE = os.open in os.supports_dir_fd  # not on Windows, which lets no directory be renamed that has open files


class OpenDirectory:
    """A directory held by a handle: renamed, it is the same; whatever takes its name is not it."""

    def __init__(self, path: Path) -> None:
        self.path = path  # its name when it was opened
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if _BY_HANDLE else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle. To close twice does no harm."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with suppress(OSError):  # it is gone whatever closing says, and nothing was written to it
                os.close(handle)

    def open(self, name: str, flags: int) -> int:
        """Open a file in it, made if need be."""
        return os.open(self._at(name), flags | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666, dir_fd=self._handle)

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        """Write a file completely or not at all.

        Args:
            name: The file; what was there before is replaced.
            pieces: Arrays of bytes, written one after the other.
        """
        temporary = name + UNFINISHED
        try:
            file = self._open_to_write(temporary)
            try:
                _write_blocks(file, pieces)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(self._at(temporary), self._at(name), src_dir_fd=self._handle, dst_dir_fd=self._handle)
            self.flush()
        except BaseException as error:  # the pieces may be made while they are written, and fail with anything
            with suppress(OSError):  # a disk that failed once may fail again; the first failure is the one to report
                os.unlink(self._at(temporary), dir_fd=self._handle)
            if isinstance(error, OSError):
                raise StorageError(f"cannot write {self.path / name}: {error.strerror or error}") from error
            raise

    def delete(self, name: str) -> None:
        """Delete a file; at once, or a power cut might bring it back without what was deleted after it."""
        os.unlink(self._at(name), dir_fd=self._handle)
        self.flush()

    def names(self) -> set[str]:
        return {*os.listdir(self.path if self._handle is None else self._handle)}  # noqa: PTH208: Path has no handles

    def flush(self) -> None:
        """Flush it, so that what was created, renamed or removed in it survives a power cut."""
        if self._handle is None:  # Windows cannot open directories; its renames are journalled
            return
        try:
            os.fsync(self._handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: this file system has nothing to flush
                raise

    @property
    def moved(self) -> bool:
        """Whether its name is that of something else by now, or of nothing."""
        try:
            return self._handle is not None and not os.path.samestat(self.path.stat(), os.fstat(self._handle))
        except OSError:
            return True

    def _at(self, name: str) -> str | Path:
        return self.path / name if self._handle is None else name

    def _open_to_write(self, name: str) -> int:
        """Open a file past the page cache if possible: a run is read much later, and new cache pages are slow."""
        flags = os.O_WRONLY | os.O_TRUNC
        try:
            return self.open(name, flags | getattr(os, "O_DIRECT", 0))
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: this file system has no such mode
                raise
            return self.open(name, flags)


def write_atomically(path: Path, pieces: Iterable[Bytes]) -> None:
    """Write a file completely or not at all; what was there before is replaced."""
    try:
        directory = OpenDirectory(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    with directory:
        directory.write(path.name, pieces)


def _write_blocks(handle: int, pieces: Iterable[Bytes]) -> None:
    """Write pieces through one aligned buffer, which O_DIRECT demands; the last block is padded, then truncated."""
    buffer = np.frombuffer(mmap(-1, _BUFFER_BYTES), dtype=np.uint8)
    filled, length = 0, 0
    for piece in pieces:
        done = 0
        while done < len(piece):
            count = min(_BUFFER_BYTES - filled, len(piece) - done)
            np.copyto(buffer[filled : filled + count], piece[done : done + count])
            filled, done = filled + count, done + count
            if filled == _BUFFER_BYTES:
                _write_fully(handle, buffer.data)
                filled, length = 0, length + _BUFFER_BYTES
    _write_fully(handle, buffer[: -(-filled // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES].data)
    os.truncate(handle, length + filled)


def _write_fully(handle: int, content: memoryview) -> None:
    while content:
        written = os.write(handle, content)
        if not written:
            raise OSError(errno.EIO, "the disk accepts no more bytes and gives no reason")
        content = content[written:]
        # The rest is not aligned, so it goes through the page cache; if the disk is full, the next write says so.
        if written % _ALIGNMENT_BYTES and content and sys.platform == "linux":
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents; each is flushed, or a power cut may remove it again."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
    for directory in missing or [path]:  # another process may have made it just now
        with suppress(PermissionError), OpenDirectory(directory.parent) as parent:  # which may not be readable
            parent.flush()
