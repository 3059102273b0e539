"""Contributions and effective weights against naive sums, and what can be a target."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform import Timeline, Top, Total
from dualform.errors import NotRecorded, QueryError
from dualform.memory import Memory
from dualform.slots import Selection, Slots
from dualform.store import Run
from dualform.table import Table

STEPS, BATCH = 9, 5
SGD: dict[str, Any] = {"kind": "SGD", "lr": 0.1, "momentum": 0.9}
ADAM: dict[str, Any] = {"kind": "Adam", "lr": 0.01, "weight_decay": 0.1}


@dataclass(frozen=True)
class Case:
    """A recorded run, its model, and test inputs."""

    memory: Memory
    model: nn.Sequential
    inputs: Tensor


def train(
    path: Path, kind: str = "SGD", values: bool = True, merge: str | None = None, **options: Any
) -> nn.Sequential:
    torch.manual_seed(3)
    data, labels = torch.randn(12, 6).double(), torch.randint(3, (12,))
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    with dualform.record(model, optimizer, path, dtype="float64", values=values, merge=merge) as recorder:
        for step in range(STEPS):
            ids = torch.randint(12, (BATCH,))
            recorder.tag(id=ids, **({} if merge else {"label": labels[ids]}))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data[ids]), labels[ids]).backward()
            optimizer.step()
            if step in (2, 6):
                recorder.sync()  # several chapters
    return model


@pytest.fixture(scope="module", params=[SGD, ADAM], ids=["SGD", "Adam"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("runs") / "run"
    model = train(path, **request.param)
    return Case(dualform.load(path), model, torch.randn(4, 6).double())


def totals(table: Table, queries: int) -> Tensor:
    return torch.stack([torch.from_numpy(table.where(query=n)["total"]).sum() for n in range(queries)])


def test_a_slot_taken_out_takes_its_contribution_with_it(case: Case) -> None:
    """What `without` removes from the output is what the contribution said, slot by slot."""
    layer, queries = "2", case.memory.attend(case.model, case.inputs)["2"].queries
    whole = case.memory.attend({layer: queries})[layer].output()
    direction = torch.randn(3).double()
    scores = case.memory.attend({layer: queries})[layer].contribution(direction).top(STEPS * BATCH)
    for slot in (0, 17, 44):
        muted = case.memory.without(slot=slot).attend({layer: queries})[layer].output()
        assert_close(torch.from_numpy(scores.where(slot=slot)["score"]), (whole - muted) @ direction)


@pytest.mark.parametrize("layer", ["0", "2"])
def test_totals_and_timelines_add_up_to_the_output_along_the_direction(case: Case, layer: str) -> None:
    spotlight = case.memory.attend(case.model, case.inputs)
    contribution = spotlight[layer].contribution(1)
    top, by_label, in_time = contribution.collect(Top(3, per="id"), Total(by="label"), Timeline(4))
    for table in (by_label, in_time, contribution.total()):
        assert_close(contribution.initial() + totals(table, 4), contribution.output())
    everything = contribution.top(STEPS * BATCH).where(query=2)
    sums = {i: everything["score"][everything["id"] == i].sum() for i in set(everything["id"].tolist())}
    best = sorted(sums, key=lambda i: -sums[i])[:3]
    assert top.where(query=2)["id"].tolist() == best
    np.testing.assert_allclose(top.where(query=2)["score"], [sums[i] for i in best])


def test_a_class_of_the_last_layer_is_its_logit(case: Case) -> None:
    logits = case.model(case.inputs).detach()
    spotlight = case.memory.attend(case.model, case.inputs)["2"]
    assert_close(spotlight.contribution(1).output(), logits[:, 1])
    assert_close(spotlight.contribution([0, 1, 2, 0]).output(), logits[range(4), [0, 1, 2, 0]])
    assert_close(spotlight.contribution(torch.tensor([0, 1, 2, 0])).output(), logits[range(4), [0, 1, 2, 0]])
    assert_close(spotlight.contribution(np.array([0, 1, 2, 0])).output(), logits[range(4), [0, 1, 2, 0]])
    assert_close(spotlight.contribution().output(), logits.max(dim=1).values)


def test_floats_are_a_direction(case: Case) -> None:
    logits = case.model(case.inputs).detach()
    spotlight = case.memory.attend(case.model, case.inputs)["2"]
    for direction in ([0.0, 1.0, -0.5], np.array([0.0, 1.0, -0.5])):
        assert_close(spotlight.contribution(direction).output(), logits[:, 1] - logits[:, 2] / 2)


def test_an_inner_layer_is_asked_along_the_gradient_of_the_logit(case: Case) -> None:
    hidden = case.model[0](case.inputs).detach().requires_grad_()
    expected = torch.autograd.grad(case.model[1:](hidden)[:, 2].sum(), hidden)[0]
    contribution = case.memory.attend(case.model, case.inputs)["0"].contribution(2)
    assert_close(contribution.directions, expected)
    assert_close(contribution.output(), (hidden.detach() * expected).sum(dim=1))


def test_only_the_layer_that_computes_the_logit_is_not_first_order(case: Case) -> None:
    spotlight = case.memory.attend(case.model, case.inputs)
    assert not spotlight["2"].contribution().first_order
    assert spotlight["0"].contribution().first_order
    assert not spotlight["0"].contribution(torch.randn(4)).first_order  # what was asked for is what it is
    doubled = nn.Sequential(*case.model, Doubled())  # one entry too, and no logit
    assert case.memory.attend(doubled, case.inputs)["2"].contribution(1).first_order
    predicted = case.model(case.inputs).argmax(dim=1)
    assert_close(spotlight["0"].contribution().classes, predicted)


class Doubled(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        return 2 * given


def test_effective_weights_times_values_are_contributions(case: Case) -> None:
    spotlight, unit = case.memory.attend(case.model, case.inputs)["2"], 1
    direction = torch.eye(3).double()[unit]
    effective = spotlight.effective(unit).top(STEPS * BATCH)
    without_bias = case.memory.attend({"2": spotlight.queries})["2"].contribution(direction).top(STEPS * BATCH)
    bias = (
        case.memory.attend({"2": torch.zeros_like(spotlight.queries)})["2"].contribution(direction).top(STEPS * BATCH)
    )
    run = Run(case.memory.path)
    slots, selection = Slots(run, run.layers["2"]), Selection(run.steps)
    values = torch.cat([block.values for block in slots.stream(slots.chapters(selection), selection)])
    for query in range(4):
        by_slot = {row["slot"]: row["score"] for row in effective.where(query=query).rows()}
        whole = {row["slot"]: row["score"] for row in without_bias.where(query=query).rows()}
        of_bias = {row["slot"]: row["score"] for row in bias.where(query=query).rows()}
        for slot, weight in by_slot.items():
            assert weight * float(values[slot, unit]) == pytest.approx(whole[slot] - of_bias[slot], abs=1e-12)


def test_effective_weights_of_a_linear_optimiser_are_coefficient_times_attention(tmp_path: Path) -> None:
    model = train(tmp_path / "run", **SGD)
    spotlight = dualform.load(tmp_path / "run").attend(model, torch.randn(1, 6).double())["2"]
    attention = {row["slot"]: row["coefficient"] * row["score"] for row in spotlight.top(STEPS * BATCH).rows()}
    for unit in range(3):
        found = {row["slot"]: row["score"] for row in spotlight.effective(unit).top(STEPS * BATCH).rows()}
        assert found == pytest.approx(attention)


def test_a_view_has_the_contributions_of_its_slots(case: Case) -> None:
    direction = torch.randn(3).double()
    queries = {"2": case.memory.attend(case.model, case.inputs)["2"].queries}
    whole = case.memory.attend(queries)["2"].contribution(direction)
    labels = whole.total(by="label")
    for label in np.unique(labels["label"]).tolist():
        view = case.memory.where(label=label).attend(queries)["2"].contribution(direction)
        np.testing.assert_allclose(view.total()["total"], labels.where(label=label)["total"])
        assert set(view.top(100)["label"].tolist()) == {label}
        assert_close(view.initial() + totals(view.total(), 4), view.output())


def test_earlier_contributions_are_those_the_slots_had_then(case: Case) -> None:
    view = case.memory.until(5)
    then = view.model(case.model)
    contribution = view.attend(then, case.inputs)["2"].contribution(0)
    assert contribution.top(1000)["step"].max() == 4
    assert_close(contribution.initial() + totals(contribution.total(), 4), then(case.inputs)[:, 0].detach())


def test_many_queries_are_asked_in_portions(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    spotlight = case.memory.attend(case.model, case.inputs)["2"]
    at_once = spotlight.contribution(1).total(by="label")
    monkeypatch.setattr("dualform.attention.contribution._MAX_SCORES", 2 * STEPS * BATCH)  # two queries at a time
    in_portions = spotlight.contribution(1).total(by="label")
    assert in_portions["query"].tolist() == at_once["query"].tolist()
    np.testing.assert_allclose(in_portions["total"], at_once["total"])


def test_nothing_contributes_to_no_direction(case: Case) -> None:
    """Such as that of a layer whose units are all off."""
    contribution = case.memory.attend(case.model, case.inputs)["0"].contribution(torch.zeros(4))
    assert contribution.total()["total"].tolist() == [0.0] * 4
    assert contribution.output().tolist() == [0.0] * 4
    assert len(contribution.top(3)) == 12


def test_the_model_is_left_as_it_was(case: Case) -> None:
    model = case.memory.model(case.model).train()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    frozen = case.memory.attend(model, case.inputs)["0"].contribution(1)
    assert_close(frozen.output(), case.memory.attend(case.model, case.inputs)["0"].contribution(1).output())
    assert model.training
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_outputs_are_found_in_what_models_return(case: Case) -> None:
    class Wrapped(nn.Sequential):
        def forward(self, inputs: Tensor) -> Any:
            for module in self:
                inputs = module(inputs)
            return {"logits": inputs, "more": None}

    wrapped = Wrapped(*case.model)
    expected = case.memory.attend(case.model, case.inputs)["2"].contribution(1).output()
    assert_close(case.memory.attend(wrapped, case.inputs)["2"].contribution(1).output(), expected)


def test_targets_that_make_no_sense(case: Case) -> None:
    spotlight = case.memory.attend(case.model, case.inputs)["2"]
    with pytest.raises(QueryError, match="the model has classes 0 to 2; the target is 3"):
        spotlight.contribution(3)
    with pytest.raises(QueryError, match="one for each of 4 inputs"):
        spotlight.contribution([0, 1])
    with pytest.raises(QueryError, match=r"has shape \(3,\), or \(4, 3\) for all queries; this one has \(5,\)"):
        spotlight.contribution(torch.randn(5))
    with pytest.raises(QueryError, match="only where the model is known"):
        case.memory.attend({"2": spotlight.queries})["2"].contribution(1)
    with pytest.raises(QueryError, match="layer '2' has units 0 to 2, not 7"):
        spotlight.effective(7)
    with pytest.raises(QueryError, match="these scores already count values"):
        spotlight.contribution(1).total(valued=True)


def test_matrices_are_no_coefficient_to_weigh_attention_by(tmp_path: Path) -> None:
    model = train(tmp_path / "run", **ADAM)
    spotlight = dualform.load(tmp_path / "run").attend(model, torch.randn(1, 6).double())["2"]
    assert "coefficient" not in spotlight.top(3).columns
    with pytest.raises(QueryError, match=r"no single coefficient.*Ask for layer.contribution"):
        spotlight.total(by="label", valued=True)


def test_what_holds_no_values_has_no_contributions(tmp_path: Path) -> None:
    model = train(tmp_path / "keys", values=False, **ADAM)
    keys_only = dualform.load(tmp_path / "keys").attend(model, torch.randn(1, 6).double())["2"]
    with pytest.raises(NotRecorded, match=r"keys only .*values=False"):
        keys_only.contribution(1).total()
    model = train(tmp_path / "merged", merge="id", **ADAM)
    merged = dualform.load(tmp_path / "merged").attend(model, torch.randn(1, 6).double())["2"]
    with pytest.raises(NotRecorded, match="it has no contributions of single slots"):
        merged.contribution(1)
