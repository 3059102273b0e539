"""Keys, queries and values whose products or squares are beyond float32, or below it; and keys that no index prunes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dualform
from dualform import Top
from dualform.errors import QueryError


def recorded(path: Path, keys: Tensor, scale: float = 1.0, **arguments: Any) -> dualform.Memory:
    """Record one step whose keys are these; values are of size `scale`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(keys.shape[1], 2, bias=False)).to(keys.dtype)
    nn.init.zeros_(next(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with dualform.record(model, optimizer, path, **arguments) as recorder:
        recorder.tag(id=np.arange(len(keys)), label=np.arange(len(keys)) % 2)
        model(keys).mul(scale).sum().backward()
        optimizer.step()
    return dualform.load(path)


@pytest.mark.parametrize("size", [1e30, 1e-42])
@pytest.mark.parametrize("queries", [1, 6])
def test_scores_beyond_float32_are_in_order(tmp_path: Path, size: float, queries: int) -> None:
    keys = torch.randn(40, 3) * size
    asked = torch.randn(queries, 3) * (1e30 if size > 1 else 1.0)
    layer = recorded(tmp_path / "run", keys, scale=1e-30, dtype="float32").attend({"0": asked})["0"]
    scores = keys.double() @ asked.double().T  # (slots, queries)
    for absolute in (False, True):
        sizes = scores.abs() if absolute else scores
        top = layer.top(40, absolute=absolute)
        for query in range(queries):
            found = top.where(query=query)
            assert sorted(found["slot"].tolist()) == list(range(40))
            slack = 1e-6 * float(sizes.abs().max()) + 1e-44
            np.testing.assert_allclose(found["score"], sizes[found["slot"], query], rtol=1e-5, atol=slack)
            np.testing.assert_allclose(layer.total(absolute=absolute).where(query=query)["total"],
                                       sizes[:, query].sum(), rtol=1e-5, atol=40 * slack)  # fmt: skip


def test_scores_of_a_float64_run_beyond_float32_are_in_order(tmp_path: Path) -> None:
    keys, asked = torch.randn(40, 3).double() * 1e100, torch.randn(6, 3).double() * 1e100
    layer = recorded(tmp_path / "run", keys, scale=1e-100, dtype="float64").attend({"0": asked})["0"]
    order = (asked @ keys.T).sort(dim=1, descending=True, stable=True).indices
    assert layer.top(40)["slot"].tolist() == order.reshape(-1).tolist()


@pytest.mark.parametrize("entry", [float("nan"), float("inf"), 1e200])
def test_queries_that_are_no_numbers_are_refused(tmp_path: Path, entry: float) -> None:
    memory = recorded(tmp_path / "run", torch.randn(4, 3))
    with pytest.raises(QueryError, match="NaN, infinite or beyond float32"):
        memory.attend({"0": torch.tensor([1.0, entry, 0.0], dtype=torch.float64)})


@pytest.mark.parametrize("size", [1e-24, 1e-38])
@pytest.mark.parametrize("absolute", [False, True])
def test_tiny_values_count(tmp_path: Path, size: float, absolute: bool) -> None:
    keys, query = torch.randn(8, 3), torch.randn(3)
    memory = recorded(tmp_path / "run", keys, scale=size, dtype="float32")
    weights = keys.double() @ query.double()
    expected = (weights.abs() if absolute else weights).sum() * 2**0.5 * size
    total = memory.attend({"0": query})["0"].total(absolute=absolute, valued=True)["total"]
    np.testing.assert_allclose(total, [float(expected)], rtol=1e-4)


def test_keys_without_preferred_directions_are_scanned(tmp_path: Path) -> None:
    torch.manual_seed(1)
    keys, queries = torch.randn(3000, 64), torch.randn(20, 64)
    layer = recorded(tmp_path / "run", keys).attend({"0": queries})["0"]
    assert "a scan of all slots (an index would leave" in layer.plan(Top(3)).explain()
    assert "a scan of all slots, summed up" in layer.plan(Top(3, per="id")).explain()
    best = (queries @ keys.half().float().T).topk(3)
    assert layer.top(3)["slot"].tolist() == best.indices.reshape(-1).tolist()
    assert layer.top(3, per="id")["id"].tolist() == best.indices.reshape(-1).tolist()
