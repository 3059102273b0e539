"""Checksums are those of zlib, whoever computes them: so runs are read where isal is, and where it is not."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.store.checksum import crc32
from dualform.store.schema import VERSION

GOLDEN = Path(__file__).parent / "golden" / str(VERSION) / "zeros"

WITHOUT_ISAL = """
import sys, zlib
sys.modules["isal"] = None
from dualform.store import Run
from dualform.store.checksum import crc32
assert crc32 is zlib.crc32
for shard in Run(sys.argv[1]).shards:
    shard.check()
"""


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 9))
def test_it_is_the_checksum_of_zlib_and_goes_on_from_another(first: bytes, second: bytes, start: int) -> None:
    assert crc32(memoryview(first)[start:]) == zlib.crc32(first[start:])
    assert crc32(memoryview(second), crc32(first)) == zlib.crc32(first + second)


def test_isal_computes_it_where_it_is_installed() -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert crc32 is isal_zlib.crc32


def test_runs_are_read_without_isal() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_ISAL, str(GOLDEN)], check=True)
