"""Checksums begun ahead: the same as without, of the next shard only, and damage is told to who asks for it."""

import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from dualform.errors import RunError
from dualform.store import (
    Column,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    Parameter,
    Rows,
    Run,
    RunWriter,
    StepRecord,
    Storage,
    Use,
)
from dualform.store.prefetch import MIN_BYTES, Checksum

WIDTH, ROWS, SHARDS = 256, MIN_BYTES // 512, 3
LAYER = Layer("fc", "Linear", WIDTH, 2, KeyLayout(WIDTH), (Use(Parameter("fc.weight", (2, WIDTH), 0), (0, WIDTH)),))
KEYS = "slots/fc/keys"  # of a shard: just worth a thread
CONTENT = bytes(range(256)) * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    about = Manifest("r", "now", "test", Storage(values=False), (Optimizer("Lion", ()),), (LAYER,))
    state = {"parameters/fc.weight": Column([np.zeros((2, WIDTH), dtype=np.float32)])}
    writer = RunWriter.begin(tmp_path / "run", about, state, 1 << 30, overwrite=False)
    for step in range(SHARDS):
        keys = np.full((ROWS, WIDTH), step, dtype=np.float16)
        rows = Rows(keys, np.zeros(ROWS, dtype=np.int16), None, None, np.ones(1), {}, may_repeat=False)
        writer.append(StepRecord({"fc.weight": [1.0]}, {"fc": 0.0}, {"fc": [rows]}), {})
        writer.seal(state)
    writer.close(state, "complete")
    return tmp_path / "run"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[Thread]:
    """Those that were started to read."""
    found: list[Thread] = []
    start: Callable[[Thread], None] = Thread.start

    def started(thread: Thread) -> None:
        found.append(thread)
        start(thread)

    monkeypatch.setattr(Thread, "start", started)
    return found


def damage(path: Path, shard: int) -> None:
    file = path / f"shard-{shard:06d}.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # among the keys, which are nearly all of it
    file.write_bytes(content)


@pytest.mark.parametrize("begun", [False, True])
def test_a_checksum_is_the_same_whenever_it_is_begun(begun: bool) -> None:
    checksum = Checksum(memoryview(CONTENT))
    if begun:
        checksum.begin()
    assert checksum.result() == checksum.result() == zlib.crc32(CONTENT)


def test_without_threads_it_is_computed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", none_left)
    checksum = Checksum(memoryview(CONTENT))
    checksum.begin()
    assert checksum.result() == zlib.crc32(CONTENT)


def test_one_that_was_left_behind_by_a_fork_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Thread, "run", lambda thread: None)  # it has ended and found nothing
    checksum = Checksum(memoryview(CONTENT))
    checksum.begin()
    assert checksum.result() == zlib.crc32(CONTENT)


def test_a_scan_reads_one_shard_ahead(path: Path, threads: list[Thread]) -> None:
    shards = Run(path).shards[1:]
    for number, shard in enumerate(shards[:SHARDS]):
        np.testing.assert_array_equal(shard[KEYS], np.float16(number))
        shard[KEYS]  # asking again begins nothing
        assert len(threads) == min(number + 1, SHARDS - 1)


def test_small_tensors_and_states_begin_nothing(path: Path, threads: list[Thread]) -> None:
    shard = Run(path).shards[1]
    for name in ("slots/fc/key_exponent", "state/parameters/fc.weight", "ledger/fc.weight"):
        shard[name]
    assert not threads


def test_a_large_state_begins_nothing(path: Path, threads: list[Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.shard.MIN_BYTES", 1)
    Run(path).shards[1]["state/parameters/fc.weight"]
    assert not threads


def test_damage_ahead_is_told_when_it_is_asked_for_and_each_time(path: Path, threads: list[Thread]) -> None:
    damage(path, 2)
    first, second, third = Run(path).shards[1:4]
    np.testing.assert_array_equal(first[KEYS], np.float16(0))
    assert len(threads) == 1
    for _ in range(2):
        with pytest.raises(RunError, match="shard-000002.safetensors is damaged: the checksum of slots/fc/keys"):
            second[KEYS]
    assert len(threads) == 1  # what comes after damage is not read
    np.testing.assert_array_equal(third[KEYS], np.float16(2))
