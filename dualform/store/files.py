"""Bytes to disk so that a file is either whole or not there, and safetensors files among them.

A file is written under a temporary name, flushed to the disk, renamed, and its directory flushed.
safetensors' own writer needs each tensor in one piece; ours takes lists of blocks, so that sealing a
shard copies nothing. Every call that changes the disk is one of `os`, where tests let each of them fail.
"""

import errno
import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dualform.errors import StorageError
from dualform.store.schema import ShardInfo, header_digest

if sys.platform != "win32":
    import fcntl

Array = NDArray[Any]

TEMPORARY = ".tmp"
_BUFFER = 4 << 20
_ALIGNED = 4096

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL", "bfloat16": "BF16",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A tensor in blocks along its first axis. `dtype` only where numpy has no name for it (bfloat16)."""

    blocks: Sequence[Array]
    dtype: str | None = None

    @property
    def name_of_dtype(self) -> str:
        return _NAMES[self.dtype or str(self.blocks[0].dtype)]

    @property
    def shape(self) -> list[int]:
        first = self.blocks[0]
        return list(first.shape) if len(self.blocks) == 1 else [sum(map(len, self.blocks)), *first.shape[1:]]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def entry(self, start: int) -> dict[str, Any]:
        """What a table of contents says of it."""
        return {"dtype": self.name_of_dtype, "shape": self.shape, "data_offsets": [start, start + self.nbytes]}


def neighbours_joined(blocks: Sequence[Array]) -> list[Array]:
    """The same rows in fewer blocks: those that follow one another in memory become one, uncopied.

    The result is good for as long as the blocks are.
    """
    runs: list[tuple[Array, int]] = []  # a first block, and the rows from there on
    end = None
    for block in blocks:
        start = block.__array_interface__["data"][0]
        if start == end and block.flags.c_contiguous:
            first, rows = runs.pop()
            runs.append((first, rows + len(block)))
        else:
            runs.append((block, len(block)))
        end = start + block.nbytes
    return [
        block if len(block) == rows else as_strided(block, (rows, *block.shape[1:]), writeable=False)
        for block, rows in runs
    ]


def write_atomically(path: Path, pieces: Iterable[Array]) -> None:
    """Write a whole file or none."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        handle = _open(temporary)
        try:
            _write_blocks(handle, pieces)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        flush_directory(path.parent)
    except OSError as error:
        with suppress(OSError):  # a disk that failed once may fail again; the first failure is the one to tell of
            temporary.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _open(path: Path) -> int:
    """A new file, past the system's cache if it can: a run is read much later, and fresh cache pages are slow."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which says that this file system has no such mode
            raise
        return os.open(path, flags, 0o666)


def _write_blocks(handle: int, pieces: Iterable[Array]) -> None:
    """Through one aligned buffer, as unbuffered files demand; the last block is padded, then cut off."""
    buffer = np.frombuffer(mmap(-1, _BUFFER), dtype=np.uint8)
    filled, length = 0, 0
    for piece in pieces:
        done = 0
        while done < len(piece):
            count = min(_BUFFER - filled, len(piece) - done)
            np.copyto(buffer[filled : filled + count], piece[done : done + count])
            filled, done = filled + count, done + count
            if filled == _BUFFER:
                _write_fully(handle, buffer.data)
                filled, length = 0, length + _BUFFER
    _write_fully(handle, buffer[: -(-filled // _ALIGNED) * _ALIGNED].data)
    os.truncate(handle, length + filled)


def _write_fully(handle: int, content: memoryview) -> None:
    while content:
        written = os.write(handle, content)
        if not written:
            raise OSError(errno.EIO, "the disk takes no more bytes and does not say why")
        content = content[written:]
        if written % _ALIGNED and content:
            _through_the_cache(handle)  # the rest is no longer aligned; if there is no room for it, now it is said


def _through_the_cache(handle: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)


def write_shard(path: Path, columns: Mapping[str, Column], info: ShardInfo) -> str:
    """Write a safetensors file with the shard's info and all checksums in its metadata; returns its digest."""
    header: dict[str, Any] = {}
    checksums: dict[str, int] = {}
    offset = 0
    # Widest elements first: then every tensor starts at a multiple of its element's size.
    ordered = sorted(columns.items(), key=lambda item: -item[1].blocks[0].itemsize)
    for name, column in ordered:
        header[name] = column.entry(offset)
        checksums[name] = _checksum(column)
        offset += column.nbytes
    text = info.to_json(checksums)
    digest = header_digest(header, text)
    header["__metadata__"] = {"dualform": text, "digest": digest}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(8 + len(encoded)) % 64)  # so that the first tensor is aligned for memory maps
    blocks = (_bytes(block) for _, column in ordered for block in column.blocks)
    head = np.frombuffer(len(encoded).to_bytes(8, "little") + encoded, dtype=np.uint8)
    write_atomically(path, [head, *blocks])
    return digest


def _bytes(block: Array) -> Array:
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8)


def _checksum(column: Column) -> int:
    checksum = 0
    for block in column.blocks:
        checksum = zlib.crc32(_bytes(block).data, checksum)
    return checksum


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
