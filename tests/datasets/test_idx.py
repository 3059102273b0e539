"""IDX files: what was written is read, and anything else is an error that names the file."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dualform.datasets import idx
from dualform.errors import DataError
from tests.datasets.idx_files import Array, encoded

GOOD = encoded(np.arange(12, dtype=np.uint8).reshape(2, 3, 2))

BAD = {
    "nothing": (b"", "begins with b''"),
    "not IDX": (b"<html></html>", "begins with b'<htm'"),
    "floats": (bytes([0, 0, 0x0D, 1, 0, 0, 0, 1]) + bytes(4), "type 0x0d"),
    "no dimension": (bytes([0, 0, 8, 0, 1]), "0 dimensions"),
    "too many dimensions": (bytes([0, 0, 8, 200]) + bytes(800), "200 dimensions"),
    "half a header": (GOOD[:9], "ends within its header"),
    "no rows": (bytes([0, 0, 8, 2, 0, 0, 0, 0, 255, 255, 255, 255]), "empty"),
    "truncated": (GOOD[:-1], "12 bytes, and 11 follow"),
    "trailing": (GOOD + b"x", "12 bytes, and 13 follow"),
    "truncated gzip": (gzip.compress(GOOD)[:-9], "decompressed"),
    "damaged gzip": (gzip.compress(GOOD)[:-8] + bytes(8), "decompressed"),
    "gzip of something else": (gzip.compress(b"hello"), "begins with b'hell'"),
}


def test_the_bytes_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x03\x07\x08\x09")
    assert idx.read(path).tolist() == [7, 8, 9]


@pytest.mark.parametrize("name", ["x", "x.gz"])
@pytest.mark.parametrize("content", [GOOD, gzip.compress(GOOD)], ids=["plain", "gzipped"])
def test_content_decides_not_the_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    array = idx.read(tmp_path / name)
    np.testing.assert_array_equal(array, np.arange(12, dtype=np.uint8).reshape(2, 3, 2))
    torch.from_numpy(array)  # which warns, an error here, if the array cannot be written to


@given(arrays(np.uint8, array_shapes(max_dims=4, max_side=5)))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, array: Array) -> None:
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(encoded(array))
    np.testing.assert_array_equal(idx.read(path), array)


@pytest.mark.parametrize(("content", "what"), BAD.values(), ids=BAD.keys())
def test_malformed_files_are_named(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "train-labels"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)
    assert what in str(caught.value)


@given(st.binary(max_size=30).map(lambda tail: b"\0\0\x08" + tail))
def test_any_bytes_are_an_array_or_our_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(content)
    try:
        array = idx.read(path)
    except DataError:
        return
    assert encoded(array) == content


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            idx.read(path)
