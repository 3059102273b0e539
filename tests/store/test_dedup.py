"""Repeated keys: every slot finds its own key again, whatever comes in whatever order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.store.chapter import Rows
from dualform.store.codec.dedup import KeyPool


def rows(keys: np.ndarray, exponent: np.ndarray | None = None, may_repeat: bool = True) -> Rows:
    return Rows(keys, exponent, None, None, np.ones(1), {}, may_repeat)


@given(st.lists(st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=4), min_size=1, max_size=3), max_size=5))
def test_every_slot_finds_its_key(chapters: list[list[list[int]]]) -> None:
    examples = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float16)
    pool, stored = KeyPool(), np.empty((0, 3), dtype=np.float16)
    for chapter in chapters:
        columns = pool.columns("l", [rows(examples[np.array(ids, dtype=np.int64)]) for ids in chapter])
        stored = np.concatenate([stored, *columns["slots/l/keys"].blocks])
        index = np.concatenate(columns["slots/l/key_index"].blocks)
        np.testing.assert_array_equal(stored[index], examples[np.array([i for ids in chapter for i in ids], dtype=int)])
    assert len(stored) == len(np.unique(stored, axis=0))


def test_rows_that_differ_in_one_bit_or_only_in_their_exponent_are_different() -> None:
    keys = np.zeros((130, 64), dtype=np.uint16)
    keys[np.arange(1, 129), np.arange(128) // 2] = np.where(np.arange(128) % 2, 1, 1 << 15)
    exponent = np.zeros(130, dtype=np.int16)
    exponent[129] = 1
    columns = KeyPool().columns("l", [rows(keys.view(np.float16), exponent)])
    assert len(columns["slots/l/keys"].blocks[0]) == 130


def test_comparing_stops_where_repeats_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.codec.dedup._MAX_ROWS", 100)
    rng, pool = np.random.default_rng(0), KeyPool()
    fresh = [pool.columns("l", [rows(rng.normal(size=(60, 3)))]) for _ in range(4)]
    assert "slots/l/key_index" in fresh[0]
    assert "slots/l/key_index" not in fresh[3]
    after = pool.columns("l", [rows(rng.normal(size=(5, 3)), may_repeat=False)])
    assert len(after["slots/l/keys"].blocks[0]) == 5
