"""Read IDX files, the format in which MNIST is published: an array of bytes after a header.

    read(Path("train-images-idx3-ubyte.gz"))        # (60000, 28, 28) uint8

Two zero bytes, one for the type (8: unsigned bytes), one for the number of dimensions; then each
dimension in four bytes, most significant first; then the elements. The whole may be gzipped.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.errors import DataError

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTES = 8
_DIMENSIONS = range(1, 5)  # images of several channels have four


def read(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file, gzipped or not: its first bytes decide, for names may have lost their suffix."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(_GZIP) else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _malformed(path, f"it cannot be decompressed ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) < 4 or content[:2] != b"\0\0":
        raise _malformed(path, f"it begins with {content[:4]!r}")
    kind, dimensions = content[2], content[3]
    if kind != _UNSIGNED_BYTES:
        raise _malformed(path, f"its elements are of type {kind:#04x}, not unsigned bytes (0x08)")
    if dimensions not in _DIMENSIONS:
        raise _malformed(path, f"it has {dimensions} dimensions, not 1 to {_DIMENSIONS[-1]}")
    if len(content) < 4 + 4 * dimensions:
        raise _malformed(path, "it ends within its header")
    shape = tuple(np.frombuffer(content, ">u4", count=dimensions, offset=4).tolist())
    if 0 in shape:
        raise _malformed(path, f"it is empty, of shape {shape}")
    start = 4 + 4 * dimensions
    actual, expected = len(content) - start, math.prod(shape)
    if actual != expected:
        raise _malformed(path, f"its header announces {shape}, {expected:,} bytes, and {actual:,} follow")
    # A copy, because bytes are read-only, and torch warns about tensors over such memory.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _malformed(path: Path, what: str) -> DataError:
    return DataError(f"corrupt IDX file {path}: {what}; replace or remove it")
