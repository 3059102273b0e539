"""What is made of influence: sums, the best, probabilities, and what cannot be asked."""

from typing import Any

import numpy as np
import pytest
import torch

from dualform.errors import NotRecorded, QueryError, UnknownName
from tests.influence.loops import BATCHES, IDS, LABELS, PROBES, SIZE, ask, mlp, record, sgd


def test_sums_are_the_same_whatever_they_are_by() -> None:
    model = mlp()
    memory = record(model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))
    calls = list[tuple[int, int]]()
    influence = ask(memory, model, progress=lambda step, steps: calls.append((step, steps)))
    assert calls == [(step, BATCHES) for step in range(1, BATCHES + 1)]
    whole = influence.total()["total"]
    tables = [influence.total(by="label"), influence.total(by=("label", "id")), influence.examples, influence.top(99)]
    for table in (*tables, *(influence.timeline(bins) for bins in (1, 3, BATCHES, 20))):
        np.testing.assert_allclose(np.bincount(table["query"], table["total"]), whole, rtol=1e-9)
    assert influence.total()["visits"].tolist() == [BATCHES * SIZE] * 3
    assert influence.total(by="label")["visits"].sum() == 3 * BATCHES * SIZE
    questions: list[dict[str, Any]] = [{"label": 1}, {"id": [3, 5, 6]}, {"label": (0, 2), "id": np.arange(6)}]
    for without in (*questions, {"id": torch.tensor([7])}):
        chosen = influence.total(by=("id", "label"))
        mask = np.ones(len(chosen), dtype=bool)
        for tag, values in without.items():
            mask &= np.isin(chosen[tag], values)
        expected = influence.outputs.numpy() - np.bincount(chosen["query"], chosen["total"] * mask)
        np.testing.assert_allclose(influence.of(without=without).numpy(), expected, rtol=1e-9)


def test_the_best_and_the_worst_with_their_tags() -> None:
    model = mlp()
    memory = record(model, torch.optim.SGD(model.parameters(), lr=0.3))
    influence = ask(memory, model)
    totals, count = influence.examples["total"].reshape(3, -1), len({*torch.cat(IDS).tolist()})
    ids = influence.examples["id"][:count]
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, totals), ({"against": True}, -totals), ({"absolute": True}, np.abs(totals)),
    ]  # fmt: skip
    for options, key in cases:
        top = influence.top(4, **options)
        order = np.argsort(-key, axis=1)[:, :4]
        assert top["id"].reshape(3, 4).tolist() == ids[order].tolist()
        np.testing.assert_allclose(top["total"].reshape(3, 4), np.take_along_axis(totals, order, 1))
        assert top["label"].tolist() == LABELS[top["id"], 0].tolist()
        assert top["visits"].tolist() == [int((torch.cat(IDS) == one).sum()) for one in top["id"].tolist()]
    assert influence.top(2, per="label")["visits"].sum() == sum(
        int((LABELS[torch.cat(IDS), 0] == label).sum()) for label in influence.top(2, per="label")["label"]
    )


def test_probabilities_change_to_first_order() -> None:
    """As much as a small step along the output changes that of the target."""
    model = mlp()
    memory = record(model, torch.optim.SGD(model.parameters(), lr=0.3))
    small, by_measure = 1e-6, {of: ask(memory, model, of=of) for of in ("margin", "loss", "logit")}
    p = model(PROBES[:, 0]).softmax(1)[torch.arange(3), torch.tensor([0, 2, 1])].detach().numpy()
    chances: dict[str, Any] = {"margin": lambda out: 1 / (1 + np.exp(-out)), "loss": lambda out: np.exp(-out)}
    for of, chance in chances.items():
        influence = by_measure[of]
        np.testing.assert_allclose(chance(influence.outputs.numpy()), p)
        top = influence.top(5)
        outputs = influence.outputs.numpy()[top["query"]]
        slope = (chance(outputs + small) - chance(outputs - small)) / (2 * small)
        np.testing.assert_allclose(top["probability"], slope * top["total"], rtol=1e-6)
    assert "probability" not in by_measure["logit"].top(5).columns


def test_questions_that_make_no_sense() -> None:
    model = mlp()
    memory = record(model, sgd(model))
    for view in (memory.where(label=1), memory.without(id=3)):
        with pytest.raises(QueryError, match="ask a memory without where or without"):
            ask(view, model)
    with pytest.raises(NotRecorded, match="no step was recorded"):
        ask(memory.until(0), model)
    with pytest.raises(NotRecorded, match="ask about fewer inputs at a time"):
        ask(memory, model, max_bytes=100)
    with pytest.raises(NotRecorded, match="holds keys only"):
        ask(record(model, sgd(model), values=False), model)
    for method, question in ("exact", lambda: ask(memory, model, method="exact")), (
        "calibrate", lambda: memory.calibrate(model, PROBES[:, 0]),
    ):  # fmt: skip
        with pytest.raises(NotRecorded, match=r"this run has no recipe.*Write the training as dualform.Recipe"):
            question()
        assert method
    influence = ask(memory, model)
    nonsense: list[Any] = [{}, None, 3, "label"]
    for nothing in nonsense:
        with pytest.raises(QueryError, match="without says which examples by their tags"):
            influence.of(without=nothing)
    with pytest.raises(UnknownName, match="no tag 'lable'; choose from 'id', 'label'"):
        influence.of(without={"lable": 1})
    with pytest.raises(UnknownName, match="no value of tag 'label': 9; choose from 0, 1, 2"):
        influence.of(without={"label": [1, 9]})
    for k in (0, True, 2.0):
        with pytest.raises(QueryError, match="k must be at least 1"):
            influence.top(k)  # type: ignore[arg-type]
        with pytest.raises(QueryError, match="bins must be at least 1"):
            influence.timeline(k)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="by is a tag or a tuple of tags"):
        influence.total(by=())
    with pytest.raises(UnknownName, match="no tag 'day'"):
        influence.total(by=("label", "day"))
