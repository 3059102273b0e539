"""The header of a shard: what safetensors refuses is refused, and what it takes is taken."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from dualform.store import Column, InMemory
from dualform.store.schema import ShardInfo
from dualform.store.shard_file import read_header, write_shard

NAME = "shard-000000.safetensors"
METADATA = {"dualform": "{}"}
SOUND = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
AFTER = {"dtype": "U8", "shape": [4], "data_offsets": [24, 28]}


def file_of(header: bytes, content: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + content


def file_with(tensors: Mapping[str, Any], length: int, metadata: Any = METADATA) -> bytes:
    return file_of(json.dumps({"__metadata__": metadata, **tensors}).encode(), bytes(length))


def safetensors_takes(content: bytes) -> bool:
    try:
        safetensors.deserialize(content)  # type: ignore[no-untyped-call, unused-ignore]
    except safetensors.SafetensorError:
        return False
    return True


def dualform_takes(content: bytes) -> bool:
    backend = InMemory()
    backend.lock().write(NAME, [np.frombuffer(content, dtype=np.uint8)])
    try:
        read_header(backend.open(NAME))
    except (ValueError, RecursionError):
        return False
    return True


def test_what_is_written_is_read_by_both() -> None:
    backend = InMemory()
    columns = {
        "a": Column([np.zeros((2, 3), dtype=np.int8), np.ones((1, 3), dtype=np.int8)]),
        "b": Column([np.array(3.0)]),
        "empty": Column([np.empty((0, 5), dtype=np.float32)]),
        "half": Column([np.zeros(4, dtype=np.uint16)], "bfloat16"),
    }
    write_shard(backend.lock(), NAME, columns, ShardInfo("r", 0, "", 0, 0, {}, None))
    blob = backend.open(NAME)
    content = blob.read(0, blob.size).tobytes()
    assert safetensors_takes(content)
    tensors, _, start = read_header(blob)
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in tensors.items()} == {
        "a": ("I8", [3, 3]), "b": ("F64", []), "empty": ("F32", [0, 5]), "half": ("BF16", [4]),
    }  # fmt: skip
    assert start % 64 == 0


TAKEN = {
    "two tensors": file_with({"a": SOUND, "b": AFTER}, 28),
    "in any order": file_with({"b": AFTER, "a": SOUND}, 28),
    "spaces at the end": file_of(json.dumps({"__metadata__": METADATA, "a": SOUND}).encode() + b"  \n", bytes(24)),
    "no tensor": file_with({}, 0),
    "an empty tensor between two": file_with({"a": SOUND, "x": {**AFTER, "shape": [0], "data_offsets": [24, 24]},
                                              "b": AFTER}, 28),
}  # fmt: skip
REFUSED = {
    "nothing": b"",
    "half a length": b"\0" * 7,
    "no header": b"\0" * 8,
    "a header longer than the file": (100).to_bytes(8, "little") + b"{}",
    "a header that is too long": (100_000_001).to_bytes(8, "little") + b"{}",
    "a byte order mark": file_of(b"\xef\xbb\xbf" + json.dumps({"__metadata__": METADATA}).encode()),
    "UTF-16": file_of(json.dumps({"__metadata__": METADATA}).encode("utf-16")),
    "not UTF-8": file_of(b'{"\xff": 1}'),
    "not JSON": file_of(b"{"),
    "a list": file_of(b"[]"),
    "metadata that are no texts": file_with({}, 0, metadata={"a": 1}),
    "a byte too many": file_with({"a": SOUND}, 25),
    "a byte too few": file_with({"a": SOUND}, 23),
    "a gap": file_with({"a": SOUND, "b": {**AFTER, "data_offsets": [25, 29]}}, 29),
    "an overlap": file_with({"a": SOUND, "b": {**AFTER, "data_offsets": [23, 27]}}, 27),
    "the same bytes twice": file_with({"a": SOUND, "b": SOUND}, 24),
    "a tensor that ends before it begins": file_with({"a": {**SOUND, "data_offsets": [24, 0]}}, 24),
    "another shape": file_with({"a": {**SOUND, "shape": [2, 4]}}, 24),
    "another dtype": file_with({"a": {**SOUND, "dtype": "F64"}}, 24),
    "an unknown dtype": file_with({"a": {**SOUND, "dtype": "F33"}}, 24),
    "a dtype that is no text": file_with({"a": {**SOUND, "dtype": 32}}, 24),
    "a shape of floats": file_with({"a": {**SOUND, "shape": [2.0, 3]}}, 24),
    "a shape of truths": file_with({"a": {**SOUND, "shape": [True, 6]}}, 24),
    "a shape of a number": file_with({"a": {**SOUND, "shape": 6}}, 24),
    "negative lengths": file_with({"a": {**SOUND, "shape": [-2, -3]}}, 24),
    "minus zero": file_with({"a": SOUND}, 24).replace(b"[0, 24]", b"[-0,24]"),
    "a length of 2**64": file_with({"a": {**SOUND, "shape": [0, 2**64], "data_offsets": [0, 0]}}, 0),
    "a product beyond 2**64": file_with({"a": {**SOUND, "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}}, 0),
    "more lengths than can be multiplied": file_with({"a": {**SOUND, "shape": [2**63] * 300_000}}, 24),
    "three offsets": file_with({"a": {**SOUND, "data_offsets": [0, 24, 24]}}, 24),
    "no offsets": file_with({"a": {"dtype": "F32", "shape": [2, 3]}}, 24),
    "an entry that is none": file_with({"a": None}, 0),
    "half a surrogate pair": file_with({"\ud800": SOUND}, 24),
}  # fmt: skip
# Of what others read, a shard has no use for these.
OURS_ALONE = {
    "a space before the header": file_of(b" " + json.dumps({"__metadata__": METADATA}).encode()),
    "no metadata": file_of(json.dumps({"a": SOUND}).encode(), bytes(24)),
    "a name twice": file_of(b'{"__metadata__": {}, "a": %b, "a": %b}' % (2 * (json.dumps(SOUND).encode(),)), bytes(24)),
    "an entry of unknown meaning": file_with({"a": {**SOUND, "transposed": True}}, 24),
    "a dtype that is never written": file_with({"a": {**SOUND, "dtype": "U32"}}, 24),
}


@pytest.mark.parametrize("content", TAKEN.values(), ids=TAKEN)
def test_what_safetensors_takes(content: bytes) -> None:
    assert (safetensors_takes(content), dualform_takes(content)) == (True, True)


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_what_safetensors_refuses(content: bytes) -> None:
    assert (safetensors_takes(content), dualform_takes(content)) == (False, False)


@pytest.mark.parametrize("content", OURS_ALONE.values(), ids=OURS_ALONE)
def test_what_only_dualform_refuses(content: bytes) -> None:
    assert (safetensors_takes(content), dualform_takes(content)) == (True, False)


_LENGTHS = st.one_of(st.integers(0, 3), st.sampled_from([2**31, 2**62, 2**63, 2**64 - 1, 2**64, -1, 1.0, True]))
_SHAPES = st.lists(st.integers(0, 3), max_size=3) | st.lists(_LENGTHS, max_size=3)


@given(
    tensors=st.lists(st.tuples(st.sampled_from(["F64", "F16", "U8"]), _SHAPES, st.sampled_from([0] * 8 + [1, -1]))),
    more=st.sampled_from([0] * 8 + [1, -1]),
)
def test_any_header_has_the_same_verdict_of_both(tensors: list[tuple[str, list[int], int]], more: int) -> None:
    header, end = {}, 0
    for number, (dtype, shape, shift) in enumerate(tensors):
        nbytes = int(np.prod([{"F64": 8, "F16": 2, "U8": 1}[dtype], *shape], dtype=object))
        start, end = end + shift, end + nbytes
        header[str(number)] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    content = file_with(header, min(max(end + more, 0), 4096))
    assert dualform_takes(content) == safetensors_takes(content)


@given(at=st.floats(0, 1), cut=st.integers(0, 6), splice=st.binary(max_size=6) | st.sampled_from([b"0", b"-", b"1"]))
def test_a_header_with_other_bytes_in_it_is_not_taken_more_lightly(at: float, cut: int, splice: bytes) -> None:
    content = TAKEN["two tensors"]
    start = int(at * (len(content) - 28))
    content = content[:start] + splice + content[start + cut :]
    assert safetensors_takes(content) or not dualform_takes(content)
