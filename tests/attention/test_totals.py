"""Sums of attention over groups, in each of the ways they can be found, against a loop over all slots."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import dualform
from dualform.attention import totals
from dualform.errors import NotRecorded

STEPS, BATCH, IDS, CLASSES = 7, 6, 9, 3


class Slots:
    """Keys, values and labels of one layer, kept by hand while it is trained by plain SGD."""

    def __init__(self, path: Path, sign: float, *, values: bool = True) -> None:
        torch.manual_seed(5)
        data, labels = torch.randn(IDS, 4).double(), torch.randint(CLASSES, (IDS,))
        data = data.abs() if sign > 0 else data
        layer = nn.Linear(4, CLASSES).double()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
        keys, errors, tags = [], [], []
        with dualform.record(nn.Sequential(layer), optimizer, path, dtype="float64", values=values) as recorder:
            for _ in range(STEPS):
                ids = torch.randint(IDS, (BATCH,))
                recorder.tag(label=labels[ids])
                output = layer(data[ids])
                output.retain_grad()
                optimizer.zero_grad()
                nn.functional.cross_entropy(output, labels[ids]).backward()
                optimizer.step()
                keys.append(data[ids])
                errors.append(output.grad)
                tags.append(labels[ids])
        self.memory = dualform.load(path)
        self.keys, self.labels = torch.cat(keys), torch.cat(tags)
        self.strengths = 0.3 * torch.cat([error for error in errors if error is not None]).norm(dim=1)

    def total(self, query: torch.Tensor, label: int, absolute: bool, valued: bool) -> float:
        total = 0.0
        for key, strength, own in zip(self.keys, self.strengths, self.labels, strict=True):
            if own == label:
                weight = float(key @ query)
                total += (abs(weight) if absolute else weight) * (float(strength) if valued else 1.0)
        return total


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("way", ["nothing negative", "stored keys once", "slot by slot"])
def test_totals_are_those_of_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, absolute: bool, valued: bool
) -> None:
    if way == "slot by slot":
        monkeypatch.setattr(totals, "_COUNTED_CELLS", 0)
    slots = Slots(tmp_path / "run", sign=1.0 if way == "nothing negative" else -1.0)
    queries = torch.randn(3, 4).double()
    queries = queries.abs() if way == "nothing negative" else queries
    for count in (1, 3, 3):  # from scores, from sums of keys where there are such, and from what was kept
        layer = slots.memory.attend({"0": queries[:count]})["0"]
        for row in layer.total(by="label", absolute=absolute, valued=valued).rows():
            expected = slots.total(queries[row["query"]], row["label"], absolute, valued)
            np.testing.assert_allclose(row["total"], expected, rtol=1e-9, atol=1e-12)


def test_a_view_counts_its_own_slots_only(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "run", sign=-1.0)
    query = torch.randn(1, 4).double()
    layer = slots.memory.where(label=1).attend({"0": query})["0"]
    np.testing.assert_allclose(layer.total(absolute=True)["total"], [slots.total(query[0], 1, True, False)])


def test_timelines_can_be_valued(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "run", sign=-1.0)
    query = torch.randn(1, 4).double()
    timeline = slots.memory.attend({"0": query})["0"].timeline(STEPS, absolute=True, valued=True)
    weights = (slots.keys @ query[0]).abs() * slots.strengths
    np.testing.assert_allclose(timeline["total"], weights.view(STEPS, BATCH).sum(dim=1))


def test_keys_alone_have_no_values_to_count(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "run", sign=-1.0, values=False)
    with pytest.raises(NotRecorded, match="keys only"):
        slots.memory.attend({"0": torch.randn(1, 4)})["0"].total(valued=True)


def test_tags_that_nearly_fill_the_type_they_are_stored_in(tmp_path: Path) -> None:
    """Labels from -100 to 100 fit into one byte, their differences do not."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels, keys = torch.arange(-100, 101), torch.randn(201, 2)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float32") as recorder:
        recorder.tag(label=labels)
        model(keys).sum().backward()
        optimizer.step()
    query = torch.randn(1, 2)
    table = dualform.load(tmp_path / "run").attend({"linear": query})["linear"].total(by="label")
    assert table["label"].tolist() == labels.tolist()
    assert_close(torch.from_numpy(table["total"]).float(), (keys @ query[0]))
