"""Write and read the layout of a shard: a safetensors file, with dualform's info in its metadata.

safetensors' own writer needs each tensor in one piece; ours takes lists of blocks, so that sealing a shard copies
nothing. Its own reader needs a path; ours takes a blob of any backend, reads the header only, and refuses whatever
safetensors would refuse.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dualform.atomic_file import Bytes
from dualform.store.backend import Blob, Lock
from dualform.store.checksum import crc32
from dualform.store.parse import info_from_json
from dualform.store.schema import DTYPES, MAX_HEADER_BYTES, ShardInfo, header_digest
from dualform.strict_json import parse

Array = NDArray[Any]

_SIZE_LIMIT = 1 << 64  # of lengths and offsets, as safetensors has it
_METADATA = "__metadata__"

_CODES = {name: code for code, name in DTYPES.items()}
# A bfloat16's bits come as uint16.
NUMPY = {code: np.dtype("uint16" if name == "bfloat16" else name) for code, name in DTYPES.items()}


@dataclass(frozen=True)
class Column:
    """A tensor in blocks along its first axis. `dtype` only where numpy has no name for it (bfloat16)."""

    blocks: Sequence[Array]
    dtype: str | None = None

    @property
    def dtype_code(self) -> str:
        return _CODES[self.dtype or str(self.blocks[0].dtype)]

    @property
    def shape(self) -> list[int]:
        first = self.blocks[0]
        return list(first.shape) if len(self.blocks) == 1 else [sum(map(len, self.blocks)), *first.shape[1:]]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def entry(self, start: int) -> dict[str, Any]:
        """Return its line in a table of contents."""
        return {"dtype": self.dtype_code, "shape": self.shape, "data_offsets": [start, start + self.nbytes]}


def neighbours_joined(blocks: Sequence[Array], writeable: bool = False) -> list[Array]:
    """Return the same rows in fewer blocks: those that follow one another in memory become one, uncopied.

    The result is valid for as long as the blocks are.
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
        block if len(block) == rows else as_strided(block, (rows, *block.shape[1:]), writeable=writeable)
        for block, rows in runs
    ]


def write_shard(lock: Lock, name: str, columns: Mapping[str, Column], info: ShardInfo) -> str:
    """Write a shard with its info and all checksums in its metadata; return its digest.

    Raises a ValueError, and writes nothing, if its header could not be read again.
    """
    header: dict[str, Any] = {}
    checksums: dict[str, int] = {}
    offset = 0
    # Widest elements first: then every tensor starts at a multiple of its element's size.
    ordered = sorted(columns.items(), key=lambda item: -item[1].blocks[0].itemsize)
    for tensor, column in ordered:
        header[tensor] = column.entry(offset)
        checksums[tensor] = 0
        for block in column.blocks:
            checksums[tensor] = crc32(_bytes(block).data, checksums[tensor])
        offset += column.nbytes
    text = info.to_json(checksums)
    digest = header_digest(header, text)
    header[_METADATA] = {"dualform": text, "digest": digest}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(8 + len(encoded)) % 64)  # so that the first tensor is aligned for memory maps
    parse_header(encoded, offset)
    info_from_json(text, name)
    blocks = (_bytes(block) for _, column in ordered for block in column.blocks)
    head = np.frombuffer(len(encoded).to_bytes(8, "little") + encoded, dtype=np.uint8)
    lock.write(name, [head, *blocks])
    return digest


def _bytes(block: Array) -> Bytes:
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8)


class Header(NamedTuple):
    """What precedes the tensors of a shard."""

    tensors: dict[str, Any]  # name -> dtype, shape and data_offsets, which count from `start`
    metadata: dict[str, str]
    start: int  # where the first tensor begins


def read_header(blob: Blob) -> Header:
    """Read the header of a safetensors file, and nothing else of it.

    Raises a ValueError (or a RecursionError) that says what is wrong, unless every tensor is described in full and
    they fill the file, one after the other.
    """
    if blob.size < 8:
        raise ValueError("it is too short for a header")
    length = int.from_bytes(blob.read(0, 8).tobytes(), "little")
    if length > min(MAX_HEADER_BYTES, blob.size - 8):
        raise ValueError(f"its header cannot be {length:,} bytes long")
    start = 8 + length
    tensors, metadata = parse_header(blob.read(8, start).tobytes(), blob.size - start)
    return Header(tensors, metadata, start)


def parse_header(encoded: bytes, nbytes: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a header's table of tensors, which take so many bytes together, and its metadata."""
    if len(encoded) > MAX_HEADER_BYTES:
        raise ValueError(f"its header takes {len(encoded):,} bytes, more than the {MAX_HEADER_BYTES:,} that are read")
    text = encoded.decode()
    if not text.startswith("{"):
        raise ValueError("its header is not an object")
    tensors: dict[str, Any] = parse(text)
    metadata = tensors.pop(_METADATA, None)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not texts by name")
    end = 0
    for begin, stop in sorted(_span(name, entry) for name, entry in tensors.items()):
        if begin != end:
            raise ValueError(f"its tensors leave gaps or overlap at byte {end:,}")
        end = stop
    if end != nbytes:
        raise ValueError(f"its tensors take {end:,} bytes, and there are {nbytes:,}")
    return tensors, metadata


def _span(name: str, entry: Any) -> tuple[int, int]:
    """Return where the bytes of a tensor begin and end; raise unless they are as many as its dtype and shape say."""
    if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name} is not described by its dtype, shape and offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in NUMPY:
        raise ValueError(f"{name} has an unknown dtype")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name} has a shape or offsets that are no whole numbers")
    count = 1
    for length in shape:
        count *= length
        if count >= _SIZE_LIMIT:  # where safetensors' arithmetic would overflow, even if a later length is 0
            raise ValueError("it has a tensor that is too large")
    if count * NUMPY[dtype].itemsize != offsets[1] - offsets[0]:
        raise ValueError(f"{name} does not have as many bytes as its dtype and shape say")
    return offsets[0], offsets[1]


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < _SIZE_LIMIT for number in numbers)
