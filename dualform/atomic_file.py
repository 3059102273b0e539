"""Write a local file so that it is either whole or not there.

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

UNFINISHED = ".tmp"  # ends the name of what a killed process left of a write
_BUFFER_BYTES = 4 << 20
_ALIGNMENT_BYTES = 4096


def write_atomically(path: Path, pieces: Iterable[Bytes]) -> None:
    """Write a whole file or none."""
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        _write_flushed(temporary, pieces)
        temporary.replace(path)
        flush_directory(path.parent)
    except BaseException as error:  # the pieces may be made while they are written, and fail with anything
        with suppress(OSError):  # a disk that failed once may fail again; the first failure is the one to tell of
            temporary.unlink()
        if isinstance(error, OSError):
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def _write_flushed(path: Path, pieces: Iterable[Bytes]) -> None:
    handle = _open(path)
    try:
        _write_blocks(handle, pieces)
        os.fsync(handle)
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """A new file, past the system's cache if it can: a run is read much later, and fresh cache pages are slow."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which says that this file system has no such mode
            raise
        return os.open(path, flags, 0o666)


def _write_blocks(handle: int, pieces: Iterable[Bytes]) -> None:
    """Through one aligned buffer, as unbuffered files demand; the last block is padded, then cut off."""
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
            raise OSError(errno.EIO, "the disk takes no more bytes and does not say why")
        content = content[written:]
        if written % _ALIGNMENT_BYTES and content:
            _through_the_cache(handle)  # the rest is no longer aligned; if there is no room for it, now it is said


def _through_the_cache(handle: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)


def make_directory(path: Path) -> None:
    """A directory, and those above it that are missing; each is flushed, or a power cut may take it away again."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
    for one in missing or [path]:  # somebody else may have made it just now
        with suppress(PermissionError):  # not everyone may look into what is above
            flush_directory(one.parent)


def flush_directory(directory: Path) -> None:
    """Make what was created, renamed or removed in a directory last."""
    if sys.platform == "win32":  # Windows cannot open directories; its renames are journalled
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which says that this file system has nothing to flush
            raise
    finally:
        os.close(handle)
