"""Values without their zeros: what is read is what was written, whatever was asked for, and damage is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import dualform
from dualform.errors import RunError
from dualform.store import Run
from dualform.store.codec.sparse import stored_counts, with_zeros, without_zeros
from tests.store.hostile.forge import Forged

Array = NDArray[Any]


@given(
    width=st.integers(64, 150), rows=st.lists(st.integers(1, 30), min_size=1, max_size=3), share=st.floats(0, 1),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_rows_come_back_as_they_were(
    width: int, rows: list[int], share: float, dtype: type[np.floating], seed: int
) -> None:
    random = np.random.default_rng(seed)
    blocks = [(random.standard_normal((n, width)) * (random.random((n, width)) < share)).astype(dtype) for n in rows]
    whole, found = np.concatenate(blocks), without_zeros(blocks)
    dense = whole.nbytes
    if found is None:
        assert np.count_nonzero(whole) * whole.itemsize + whole.size / 8 > 0.9 * dense
        return
    bits, entries = (np.concatenate(column) for column in found)
    assert bits.nbytes + entries.nbytes <= 0.9 * dense + len(whole)
    np.testing.assert_array_equal(with_zeros(bits, entries, width), whole)
    np.testing.assert_array_equal(stored_counts(bits, width), np.count_nonzero(whole, axis=1))


def test_what_is_no_number_is_stored_and_a_zero_with_a_sign_is_not() -> None:
    rows = np.zeros((1, 64), dtype=np.float16)
    rows[0, :4] = [np.nan, np.inf, -0.0, 2**-24]
    found = without_zeros([rows])
    assert found is not None
    (bits,), (entries,) = found
    np.testing.assert_array_equal(entries, np.array([np.nan, np.inf, 2**-24], dtype=np.float16))
    np.testing.assert_array_equal(with_zeros(bits, entries, 64), rows)


def test_narrow_rows_and_those_without_zeros_are_left_as_they_are() -> None:
    assert without_zeros([np.zeros((9, 63), dtype=np.float16)]) is None
    assert without_zeros([np.ones((9, 64), dtype=np.float16)]) is None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with a wide ReLU, in several shards."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("runs") / "run"
    model = nn.Sequential(nn.Linear(6, 70), nn.ReLU(), nn.Linear(70, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with dualform.record(model, optimizer, path, dtype="float32") as recorder:
        for number in range(9):
            recorder.tag(label=torch.arange(8) % 3)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            optimizer.step()
            if number % 4 == 3:
                recorder.sync()
    return path


def test_a_run_without_zeros_is_smaller_certified_and_muted(recorded: Path) -> None:
    run = Run(recorded)
    chapters = [shard for _, shard in run.chapters]
    assert all("slots/0/value_mask" in shard for shard in chapters)
    assert all("slots/2/value_mask" not in shard for shard in chapters)
    assert sum(shard["slots/0/values"].nbytes for shard in chapters) < 0.7 * 9 * 8 * 70 * 4
    memory = dualform.load(recorded)
    assert memory.verify().ok
    both = [memory.where(label=1).weights("0"), memory.without(label=1).weights("0"), memory.weights("0")]
    start = memory.until(0).weights("0")["0.weight"]
    one, others, every = (weights["0.weight"] - start for weights in both)
    torch.testing.assert_close(one + others, every)
    assert one.abs().max() > 0


def test_any_rows_can_be_asked_for(recorded: Path) -> None:
    run = Run(recorded)
    shard = run.shards[1]
    whole = shard.values(run.layers["0"], slice(0, 32))
    for rows in (np.array([3]), np.array([31, 0, 7, 7]), np.arange(1, 32, 3), np.empty(0, dtype=np.int64)):
        np.testing.assert_array_equal(shard.values(run.layers["0"], rows), whole[rows])
    np.testing.assert_array_equal(shard.values(run.layers["0"], slice(5, 9)), whole[5:9])


def _one_more(bits: Array, values: Array) -> dict[str, Array]:
    bits.reshape(-1)[np.flatnonzero(bits != 0xFF)[0]] = 0xFF
    return {}


def _one_less(bits: Array, values: Array) -> dict[str, Array]:
    bits.reshape(-1)[np.flatnonzero(bits)[0]] = 0
    return {}


def _beyond_the_width(bits: Array, values: Array) -> dict[str, Array]:
    bits[0, -1] |= 1
    return {"values": np.append(values, values[:1])}


@pytest.mark.parametrize("damage", [_one_more, _one_less, _beyond_the_width])
def test_bits_that_do_not_fit_are_refused(
    recorded: Path, tmp_path: Path, damage: Callable[[Array, Array], dict[str, Array]]
) -> None:
    forged = Forged.of(recorded)
    tensors = forged.shards[1].tensors
    changed = damage(tensors["slots/0/value_mask"], tensors["slots/0/values"])
    tensors |= {f"slots/0/{name}": array for name, array in changed.items()}
    forged.write(tmp_path / "forged")
    with pytest.raises(RunError, match="value_mask"):
        dualform.load(tmp_path / "forged").weights("0")


@pytest.mark.parametrize(
    ("name", "replaced"),
    [
        ("value_mask", np.zeros((32, 8), dtype=np.uint8)),
        ("value_mask", np.zeros((31, 9), dtype=np.uint8)),
        ("value_mask", np.zeros((32, 9), dtype=np.int8)),
        ("values", np.zeros((32, 70), dtype=np.float32)),
        ("values", np.zeros(5, dtype=np.float16)),
    ],
)
def test_a_table_of_contents_that_does_not_fit_is_refused(
    recorded: Path, tmp_path: Path, name: str, replaced: Array
) -> None:
    forged = Forged.of(recorded)
    forged.shards[1].tensors[f"slots/0/{name}"] = replaced
    forged.write(tmp_path / "forged")
    with pytest.warns(UserWarning, match=f"slots/0/{name}"):
        assert dualform.load(tmp_path / "forged").steps == 0
