"""Write a local file atomically: after a crash it is complete or not there.

A file is written under a temporary name, flushed to the disk, renamed, and its directory flushed. Every call that
changes the disk is one of `os`, where tests let each of them fail.
"""

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from mmap import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.errors import StorageError

if sys.platform != "win32":
    import fcntl

Bytes = NDArray[np.uint8]

UNFINISHED = ".tmp"  # suffix of a file that a killed process did not finish
_BUFFER_BYTES = 4 << 20
_ALIGNMENT_BYTES = 4096


def write_atomically(path: Path, pieces: Iterable[Bytes]) -> None:
    """Write a file completely or not at all.

    Args:
        path: the file; what was there before is replaced.
        pieces: arrays of bytes, written one after the other.
    """
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        handle = _open(temporary)
        try:
            _write_blocks(handle, pieces)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        flush_directory(path.parent)
    except BaseException as error:  # the pieces may be made while they are written, and fail with anything
        with suppress(OSError):  # a disk that failed once may fail again; the first failure is the one to report
            temporary.unlink()
        if isinstance(error, OSError):
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def _open(path: Path) -> int:
    """Open a new file, bypassing the page cache if possible: a run is read much later, and new cache pages are slow."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: this file system has no such mode
            raise
        return os.open(path, flags, 0o666)


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
        with suppress(PermissionError):  # the parent may not be readable
            flush_directory(directory.parent)


def flush_directory(directory: Path) -> None:
    """Flush a directory, so that what was created, renamed or removed in it survives a power cut."""
    if sys.platform == "win32":  # Windows cannot open directories; its renames are journalled
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: this file system has nothing to flush
            raise
    finally:
        os.close(handle)
