"""Tags that cannot be kept exactly are refused when they are told; all others come back as they were."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dualform
from dualform.errors import RecordingError

BATCH = 3


def recorded(path: Path, *values: Any, **arguments: Any) -> dualform.Memory:
    """Record a step for each value of the tag `it`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path, **arguments) as recorder:
        for value in values:
            recorder.tag(it=value)
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(BATCH, 4)), torch.zeros(BATCH, 2)).backward()
            optimizer.step()
    return dualform.load(path)


LONE = os.fsdecode(b"caf\xe9.png")

REFUSED = {
    "surrogate": LONE,
    "surrogate in a list": ["a", "b", LONE],
    "surrogate in an array": np.array(["a", "b", LONE]),
    "surrogate in an object array": np.array(["a", "b", LONE], dtype=object),
    "surrogate in a big-endian array": np.array(["a", "b", LONE]).astype(">U8"),
    "nul at the end": "a\0",
    "nul at the end in a list": ["a", "a\0", "b"],
    "uint64": np.array([2**64 - 1, 1, 2], dtype=np.uint64),
    "uint64 tensor": torch.tensor([2**63 + 5, 1, 2], dtype=torch.uint64),
    "beyond 64 bits": [2**64, 1, 2],
    "beyond int64": [2**63, 1, 2],
    "rounded beside floats": [2**53 + 1, 0.5, 2],
    "rounded to a neighbour": [2**53 + 2, 0.5, 2],
    "numbers and strings": [1, "a", "b"],
    "none": None,
    "none in a list": [None, 1, 2],
    "complex": torch.zeros(BATCH, dtype=torch.complex64),
    "objects": [object()] * BATCH,
    "bytes": [b"a", b"b", b"c"],
    "ragged": [[1, 2], [3], [4]],
    "masked": np.ma.masked_array([1, 2, 3], mask=[True, False, False]),
    "sparse": torch.eye(BATCH).to_sparse(),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_kept_is_refused_at_once(tmp_path: Path, value: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.record(model, optimizer, tmp_path / "run").start()
    with pytest.raises(RecordingError, match="tag 'it'"):
        recorder.tag(it=value)
    recorder.stop()


@pytest.mark.parametrize("arguments", [{}, {"merge": "it"}], ids=["single", "merged"])
def test_a_lone_surrogate_names_a_remedy_that_works(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(RecordingError, match="backslashreplace"):
        recorded(tmp_path / "refused", LONE, **arguments)
    remedy = LONE.encode(errors="backslashreplace").decode()
    assert recorded(tmp_path / "run", remedy, **arguments).visits("0", by="it")["it"].tolist() == [remedy]


def test_a_name_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    recorder = dualform.record(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run").start()
    with pytest.raises(RecordingError, match="a tag cannot be called"):
        recorder.tag(**{LONE: 1})
    recorder.stop()


KEPT = {
    "int64": ([2**63 - 1, -(2**63), 0], "int"),
    "uint64 that fits": (np.array([2**63 - 1, 0, 1], dtype=np.uint64), "int"),
    "bfloat16": (torch.tensor([1.5, -2.0, 3.0]).bfloat16(), "float"),
    "float16": (torch.tensor([1.5, -2.0, 3.0]).half(), "float"),
    "float8": (torch.tensor([1.5, -2.0, 3.0]).to(torch.float8_e4m3fn), "float"),
    "list of tensors": ([torch.tensor(3), torch.tensor(1), torch.tensor(2)], "int"),
    "object strings": (np.array(["b", "a" * 500, "c"], dtype=object), "string"),
    "nul inside": (["a\0b", "", "\U0001f600"], "string"),
    "floats and whole numbers": ([2**53, 0.5, -1], "float"),
    "bools": ([True, False, True], "bool"),
    "infinities": ([float("inf"), float("-inf"), -0.0], "float"),
}


@pytest.mark.parametrize(("value", "kind"), KEPT.values(), ids=KEPT.keys())
def test_what_is_kept_comes_back(tmp_path: Path, value: Any, kind: str) -> None:
    memory = recorded(tmp_path / "run", value)
    plain = [entry.item() if isinstance(entry, torch.Tensor) else entry for entry in value]
    plain = [entry.item() if isinstance(entry, np.generic) else entry for entry in plain]
    assert memory.tags == {"it": kind}
    table = memory.attend({"0": torch.ones(4)})["0"].top(BATCH)
    assert dict(zip(table["slot"].tolist(), table["it"].tolist(), strict=True)) == dict(enumerate(plain))
    for slot, entry in enumerate(plain):
        assert memory.where(it=entry).slots("0") == plain.count(entry), slot


def test_all_nan_are_one_entry_of_a_merged_memory(tmp_path: Path) -> None:
    nan = float("nan")
    memory = recorded(tmp_path / "run", [nan, 1.0, nan], [1.0, nan, 2.0], merge="it")
    table = memory.visits("0", by="it")
    np.testing.assert_array_equal(table["it"], [1.0, 2.0, nan])
    assert table["visits"].tolist() == [2, 1, 3]
