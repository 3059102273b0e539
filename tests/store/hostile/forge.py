"""Runs taken apart and put together again, signed: every checksum, digest and link is made right.

    forged = Forged.of(Path("runs/tiny"))
    forged.shards[1].tensors["slots/0/pass_rows"][0] = -1
    forged.manifest["layers"] = []
    forged.write(Path("forged"))

Damage is found by checksums. What is behind them has to be tested with files whose checksums fit. What is said
outright is not made right: `info["previous"] = "x"` stays; `LEFT_OUT` leaves an entry out.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dualform.store.schema import MANIFEST, checksum, header_digest, shard_name

Array = NDArray[Any]
Text = Callable[[str], str]

LEFT_OUT = object()
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E5M2": 1, "F8_E4M3": 1, "C64": 8,
}  # fmt: skip
_NUMPY = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "BOOL": np.bool_, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
    "C64": np.complex64,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in _NUMPY.items()}


@dataclass
class Raw:
    """A tensor as a table of contents has it: any dtype, any shape, any bytes."""

    dtype: str
    shape: Any
    content: bytes

    @classmethod
    def of(cls, tensor: "Array | Raw") -> "Raw":
        if isinstance(tensor, Raw):
            return tensor
        return cls(_NAMES[tensor.dtype], list(tensor.shape), np.ascontiguousarray(tensor).tobytes())


@dataclass
class ForgedShard:
    """`info` without `previous` and `crc32`, which are added; `as_info` and `as_header` may spoil the texts."""

    info: Any
    tensors: dict[str, Any]
    as_info: Text = field(default=lambda text: text)  # before it is signed
    as_header: Callable[[bytes], bytes] = field(default=lambda header: header)  # after it was signed
    entry: Callable[[dict[str, Any]], Any] = field(default=lambda entry: entry)  # of each tensor in the table

    def with_own_tags(self) -> Self:
        """The same, where each layer has columns of tags of its own, which can be changed one by one."""
        self.tensors |= {name: self.tensors[other].copy() for name, other in self.info["same"].items()}
        self.info["same"] = {}
        return self

    def encoded(self, previous: str) -> tuple[bytes, str]:
        """The file's bytes, and its digest."""
        raw = {name: Raw.of(tensor) for name, tensor in self.tensors.items()}
        table, offset = {}, 0
        for name, one in raw.items():
            place = [offset, offset := offset + len(one.content)]
            table[name] = self.entry({"dtype": one.dtype, "shape": one.shape, "data_offsets": place})
        checksums = {name: zlib.crc32(one.content) for name, one in raw.items()}
        text = self.as_info(_dumped(self.info, previous=previous, crc32=checksums))
        digest = header_digest(table, text)
        header = json.dumps({**table, "__metadata__": {"dualform": text, "digest": digest}}).encode()
        header = self.as_header(header + b" " * (-(8 + len(header)) % 64))
        return file_of(header, b"".join(one.content for one in raw.values())), digest


@dataclass
class Forged:
    """A run in pieces."""

    manifest: Any  # without `crc32`, which is added
    shards: list[ForgedShard]
    as_manifest: Text = field(default=lambda text: text)

    @classmethod
    def of(cls, run: Path) -> "Forged":
        manifest = json.loads((run / MANIFEST).read_text())
        del manifest["crc32"]
        return cls(manifest, [_apart(path.read_bytes()) for path in sorted(run.glob("shard-*"))])

    def write(self, path: Path) -> None:
        """Into a directory that need not be there."""
        path.mkdir(exist_ok=True)
        signature = checksum(self.manifest) if isinstance(self.manifest, dict) else 0
        (path / MANIFEST).write_text(self.as_manifest(_dumped(self.manifest, crc32=signature)))
        previous = f"{signature:08x}"
        for index, shard in enumerate(self.shards):
            content, previous = shard.encoded(previous)
            (path / shard_name(index)).write_bytes(content)


def file_of(header: bytes, content: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file of any header, which may lie about its length."""
    return (len(header) if length is None else length).to_bytes(8, "little") + header + content


def _apart(file: bytes) -> ForgedShard:
    length = int.from_bytes(file[:8], "little")
    header, content = json.loads(file[8 : 8 + length]), file[8 + length :]
    info = json.loads(header.pop("__metadata__")["dualform"])
    del info["previous"], info["crc32"]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        column: Array = np.frombuffer(content[begin:end], dtype=_NUMPY[entry["dtype"]])
        tensors[name] = column.reshape(entry["shape"]).copy()
    return ForgedShard(info, tensors)


def _dumped(content: Any, **signature: Any) -> str:
    if isinstance(content, Mapping):
        content = {name: value for name, value in {**signature, **content}.items() if value is not LEFT_OUT}
    return json.dumps(content, sort_keys=True)
