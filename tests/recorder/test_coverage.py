"""Coverage says which share of a model is recorded, and why not more."""

from pathlib import Path

import pytest
import torch
from torch import nn

import dualform
from dualform.store import Run
from tests.recorder.loops import Unknown, record, sgd, step


class Everything(nn.Module):
    """One of each sort of module, recorded or not, and bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.conv = nn.Conv2d(1, 2, 3)
        self.gru = nn.GRU(4, 4)
        self.cell = nn.LSTMCell(4, 4)
        self.bag = nn.EmbeddingBag(10, 4)
        self.norm, self.unknown = nn.LayerNorm(4), Unknown(4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.token = nn.Parameter(torch.zeros(4))


def test_every_trainable_parameter_is_covered_somehow_with_a_reason(tmp_path: Path) -> None:
    model = Everything()
    recorder = dualform.record(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run")
    coverage = recorder.coverage
    rows = {row["parameter"]: row for row in coverage.table.rows()}
    assert {*rows} == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    attributed = {name for name, row in rows.items() if row["covered"] == "attributed"}
    assert attributed == {
        "fc.weight", "fc.bias", "conv.weight", "conv.bias", "bag.weight", "norm.weight", "norm.bias"
    }  # fmt: skip
    assert rows["unknown.weight"]["reason"] == "Unknown is of no known kind"
    assert rows["token"]["reason"] == "Everything is of no known kind"
    assert {"gru", "cell", "unknown", "attention", "token"} <= {*recorder.skipped}
    assert "frozen" not in recorder.skipped
    assert coverage.frozen == 20
    assert coverage.attributed + coverage.accounted + coverage.snapshots_only == pytest.approx(1.0)
    counted = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert coverage.attributed == sum(counted[name] for name in attributed) / sum(counted.values())


def test_a_share_that_is_not_all_never_looks_like_all(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(300, 300), Unknown(1))
    recorder = dualform.record(model, sgd(model), tmp_path / "run")
    expected = ">99.9% of 90,302 trainable parameters attributed, 0.002% accounted for"
    assert str(recorder.coverage) == expected
    model = nn.Sequential(nn.Linear(300, 300))
    assert str(dualform.record(model, sgd(model), tmp_path / "run").coverage).startswith("100% of 90,300")


def test_what_is_too_large_to_account_for_is_warned_of_and_in_every_headline(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 15_000), Unknown(15_000), nn.Linear(15_000, 1))
    optimizer = sgd(model)
    with pytest.warns(UserWarning, match="1: Unknown is of no known kind.*of 210,001 trainable"):
        recorder = dualform.record(model, optimizer, tmp_path / "run").start()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 10)).square().mean().backward()
        optimizer.step()
    recorder.stop()
    memory = dualform.load(tmp_path / "run")
    coverage = memory.coverage
    assert coverage.snapshots_only == pytest.approx(15_000 / coverage.numbers)
    assert str(coverage) == str(recorder.coverage)
    line = "7.14% in snapshots only"
    assert line in memory.verify().headline
    assert line in repr(memory)
    assert line in memory._repr_html_()
    assert memory.summary()["coverage"]["snapshots_only"] == coverage.snapshots_only


def test_a_parameter_in_no_optimiser_is_named_as_such(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    recorder = dualform.record(model, torch.optim.SGD(model[0].parameters(), lr=0.1), tmp_path / "run")
    assert {row["reason"] for row in recorder.coverage.table.rows()} == {"", "no optimiser that was passed steps it"}
    assert recorder.coverage.parameters("snapshots only") == ["1.weight", "1.bias"]


def test_frozen_layers_are_counted_and_stored_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 300), nn.Linear(300, 300), nn.Linear(300, 3)).double()
    model[1].requires_grad_(False)
    model.register_buffer("mask", torch.ones(300, 300, dtype=torch.float64))
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(4):
            step(model, optimizer)
            recorder.sync()
    assert recorder.coverage.frozen == 90_300
    first, *others = Run(tmp_path / "run").shards
    assert {"state/parameters/1.weight", "state/buffers/mask"} <= {*first.names("state/")}
    assert not {"state/parameters/1.weight", "state/buffers/mask"} & {n for s in others for n in s.names("state/")}
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    for s in range(5):
        torch.testing.assert_close(
            memory.until(s).model(model).state_dict()["1.weight"], model.state_dict()["1.weight"]
        )
    torch.testing.assert_close(memory.model(model).state_dict(), model.state_dict())
