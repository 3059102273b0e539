"""Labels that were changed are among the first suspects, and what is no classification is refused."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform.datasets.digits import load
from dualform.errors import NotRecorded, QueryError
from dualform.store import InMemory
from tests.influence.loops import INPUTS, LABELS, SQUARES, Mixed, mlp, record

FLIPPED = 0.05


@cache
def noisy(classes: int = 10) -> tuple[dualform.Memory, Tensor, Tensor]:
    """A training on digits, some labels of which are wrong: its memory, and the labels, as they are and should be."""
    digits, numbers = load(), torch.Generator().manual_seed(0)
    images, true = (digits.train.raw.float() / 16).flatten(1), digits.train.labels % classes
    changed = torch.rand(len(true), generator=numbers) < FLIPPED
    other = (true + torch.randint(1, classes, true.shape, generator=numbers)) % classes
    labels = torch.where(changed, other, true)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))
    optimizer, where = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), InMemory()
    with dualform.record(model, optimizer, where, dtype="float32", provenance=False) as recorder:
        for _ in range(100):
            ids = torch.randperm(len(images), generator=numbers)[:96]
            recorder.tag(id=ids, even=ids % 2 == 0)
            F.cross_entropy(model(images[ids]), labels[ids]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return dualform.load(where), labels, true


@pytest.mark.parametrize(("classes", "auc"), [(10, 0.99), (2, 0.9)])
def test_changed_labels_come_first(classes: int, auc: float) -> None:
    memory, labels, true = noisy(classes)
    table = memory.suspects(len(labels))
    ids, changed = torch.from_numpy(table["id"]).long(), labels != true
    assert table["label"].tolist() == labels[ids].tolist()
    assert (np.diff(table["score"]) <= 0).all()
    wrong = changed[ids]
    ranks = torch.arange(len(wrong), 0, -1, dtype=torch.float64)[wrong]
    count = int(wrong.sum())
    found = (float(ranks.sum()) - count * (count + 1) / 2) / (count * (len(wrong) - count))
    assert found >= auc
    first = memory.suspects(40)
    assert first["id"].tolist() == ids[:40].tolist()
    hit = changed[ids[:40]].numpy()
    assert hit.mean() >= 0.8
    assert (first["suggested"] == true[ids[:40]].numpy())[hit].mean() >= 0.9
    assert first.columns[-1] == "even"
    assert (first["suggested"] != first["label"]).all()


def test_what_the_model_said_is_what_it_said() -> None:
    """By a naive loop over a training of which each step is known."""
    model = mlp()
    expected: dict[int, list[Tensor]] = {}

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, rows: Tensor) -> Tensor:
            out: Tensor = self.inner(rows)
            if torch.is_grad_enabled() and self.training:
                said.append((rows.detach(), out.detach().softmax(1)))
            return out

    said = list[Any]()
    watched = Watched()
    memory = record(watched, torch.optim.SGD(model.parameters(), lr=0.3), provenance=False)
    for rows, probabilities in said[int(0.25 * len(said)) :]:
        for row, own in zip(rows, probabilities, strict=True):
            (number,) = torch.nonzero((INPUTS[:, 0] == row).all(dim=1)).flatten().tolist()
            expected.setdefault(number, []).append(own)
    table = memory.suspects(100)
    assert sorted(table["id"].tolist()) == sorted(expected)
    for row in table.rows():
        own, label = torch.stack(expected[row["id"]]), int(LABELS[row["id"], 0])
        others = own.clone()
        others[:, label] = -1
        assert row["label"] == label
        assert row["visits"] == len(own)
        assert row["score"] == pytest.approx(float((others.amax(1) - own[:, label]).mean()), abs=1e-6)
        assert row["probability"] == pytest.approx(float(own[:, label].mean()), abs=1e-6)
        assert row["suggested"] == int(others.mean(0).argmax())
        assert row["suggested_probability"] == pytest.approx(float(others.mean(0).max()), abs=1e-6)


def test_questions_that_make_no_sense() -> None:
    def memory(**options: Any) -> dualform.Memory:
        model = mlp()
        return record(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)

    whole = memory()
    for k in (0, -1, True, 2.5, "3"):
        with pytest.raises(QueryError, match="k must be at least 1"):
            whole.suspects(k)  # type: ignore[arg-type]
    assert len(whole.suspects(1)) == 1
    assert whole.until(4).suspects(3)["visits"].max() <= 3
    with pytest.raises(QueryError, match="ask a memory without where or without"):
        whole.where(label=1).suspects()
    with pytest.raises(NotRecorded, match="no step was recorded"):
        whole.until(0).suspects()
    with pytest.raises(NotRecorded, match="recorder.tag"):
        memory(tags=("label",)).suspects()
    with pytest.raises(NotRecorded, match="holds keys only"):
        memory(values=False).suspects()
    with pytest.raises(NotRecorded, match="are not those of a softmax cross-entropy"):
        memory(losses=SQUARES).suspects()
    tokens = Mixed().double()
    said = record(tokens, torch.optim.SGD(tokens.parameters(), lr=0.1), INPUTS, LABELS)
    with pytest.raises(NotRecorded, match="several at once, one for each token"):
        said.suspects()
