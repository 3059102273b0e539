"""Files as no checksum sees them: absurd lengths, pipes, devices, links, and holes of a terabyte."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.store.hostile.edits import FIRST, LAST, MANIFEST, SECOND
from tests.store.hostile.forge import file_of

_TERABYTE = 1 << 40
Put = Callable[[Path, bytes], None]  # something in the place of a file, given what was in it


@dataclass(frozen=True)
class FileCase:
    """`refused`: it has to be complained about; else it must not."""

    name: str
    file: str
    put: Put
    refused: bool = True


def _bytes(change: Callable[[bytes], bytes]) -> Put:
    def put(path: Path, content: bytes) -> None:
        path.write_bytes(change(content))

    return put


def _hole(length: int, start: Callable[[bytes], bytes] = lambda content: content) -> Put:
    """A file that says it is so long, and takes no room."""

    def put(path: Path, content: bytes) -> None:
        path.write_bytes(start(content))
        os.truncate(path, length)

    return put


def _of_a_terabyte(content: bytes) -> bytes:
    """A header that is right about a tensor that nobody has the memory for."""
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    entry = {"dtype": "U8", "shape": [_TERABYTE], "data_offsets": [0, _TERABYTE]}
    return file_of(json.dumps({"state/buffers/x": entry, "__metadata__": metadata}).encode().ljust(4088))


def _link(target: str) -> Put:
    return lambda path, content: path.symlink_to(target)


def _link_to_a_copy(path: Path, content: bytes) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(content)
    path.symlink_to(copy.name)


def _link_to_itself(path: Path, content: bytes) -> None:
    path.symlink_to(path.name)


def _pipe(path: Path, content: bytes) -> None:
    os.mkfifo(path)


def _directory(path: Path, content: bytes) -> None:
    path.mkdir()


def _socket(path: Path, content: bytes) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # for a socket's path has to be short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _anywhere(name: str, put: Put, refused: bool = True) -> list[FileCase]:
    return [FileCase(f"{name} for {file}", file, put, refused) for file in (MANIFEST, FIRST, SECOND, LAST)]


def _length(length: int) -> Put:
    return _bytes(lambda content: length.to_bytes(8, "little") + content[8:])


FILES_AS_THEY_ARE = [
    *_anywhere("nothing", _bytes(lambda content: b"")),
    *_anywhere("a pipe", _pipe),
    *_anywhere("a directory", _directory),
    *_anywhere("a socket", _socket),
    *_anywhere("endless zeros", _link("/dev/zero")),
    *_anywhere("no device", _link("/dev/null")),
    *_anywhere("a link to nothing", _link("nowhere")),
    *_anywhere("a link to itself", _link_to_itself),
    *_anywhere("a link to a sound file", _link_to_a_copy, refused=False),
    *_anywhere("a hole of a terabyte", _hole(_TERABYTE, lambda content: b"")),
    *_anywhere("a file with a hole of a terabyte at its end", _hole(_TERABYTE)),
    *_anywhere("a hole of 100 MB and a byte", _hole(100_000_001)),
    *_anywhere("random bytes", _bytes(lambda content: bytes(range(256)) * 8)),
    *_anywhere("bytes that are not UTF-8", _bytes(lambda content: b"\xff\xfe" * 500)),
    *_anywhere("a file and a byte", _bytes(lambda content: content + b"x")),
    *_anywhere("a file twice", _bytes(lambda content: content * 2)),
    *_anywhere("a byte order mark", _bytes(lambda content: b"\xef\xbb\xbf" + content)),
    *(
        FileCase(f"a header of {length:,} bytes", SECOND, _length(length))
        for length in (0, 1, 2, 100_000_000, 100_000_001, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    ),
    FileCase(
        "a header of 100 MB and a byte, and as many bytes",
        SECOND,
        _hole(100_000_009, lambda c: file_of(b"{", length=100_000_001)),
    ),
    FileCase("a header of 8 bytes", SECOND, _bytes(lambda content: content[:8])),
    FileCase("a tensor of a terabyte", LAST, _hole(4096 + _TERABYTE, _of_a_terabyte)),
    FileCase("an empty table", SECOND, _bytes(lambda content: file_of(b"{}"))),
    FileCase("no table", SECOND, _bytes(lambda content: file_of(b"[]"))),
    FileCase("a table with nothing about it", SECOND, _bytes(lambda content: file_of(b'{"__metadata__":null}'))),
    FileCase("a table with nothing in it", SECOND, _bytes(lambda content: file_of(b'{"__metadata__":{}}'))),
    FileCase("shards by numbers that are not there", SECOND, lambda path, content: None),
]
