"""method="exact" is the derivative of retraining, by the weight of each visit."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.errors import NotRecorded, QueryError, UnknownName
from dualform.influence.result import Influence
from tests.influence.trainings import MODELS, TESTS, VISITS, differences, recipe, trained

DIRECTION = torch.randn(VISITS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
SGD = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"lr": 0.02, "betas": (0.6, 0.8), "eps": 1e-3}


def measured(model: nn.Module, inputs: Tensor, classes: Tensor, of: str) -> Tensor:
    logits: Tensor = model(inputs)
    logits = logits[-1] if logits.dim() == 3 else logits  # time first
    logit = logits[torch.arange(len(logits)), classes]
    others = logits.clone()
    others[torch.arange(len(logits)), classes] = -torch.inf
    return {"logit": logit, "margin": logit - others.logsumexp(1), "loss": logits.logsumexp(1) - logit}[of]


def compare(
    of: dualform.Recipe, model: str, rtol: float, around: float = 1.0, measure: str = "margin", size: float = 2e-3
) -> Influence:
    memory, end = trained(of)
    inputs = TESTS[MODELS[model][1]]
    classes, rows = torch.tensor([0, 2, 1, 1]), -1 if model == "speaks" else None
    influence = memory.influence(end, inputs, classes, of=measure, method="exact", around=around, rows=rows)
    assert_close(influence.outputs, measured(end, inputs, classes, measure), rtol=1e-12, atol=1e-12)
    buffers = {name: buffer.clone() for name, buffer in end.named_buffers()}

    def outputs(model: nn.Module) -> Tensor:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        return measured(model, inputs, classes, measure)

    of_visits = torch.from_numpy(influence.total(by="visit")["total"]).view(4, VISITS)
    expected = differences(of, DIRECTION, around, outputs, size)
    assert_close(of_visits @ DIRECTION, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))
    return influence


@given(
    options=st.fixed_dictionaries({
        "momentum": st.sampled_from([0.0, 0.5, 0.9]), "weight_decay": st.sampled_from([0.0, 0.1]),
        "maximize": st.booleans(), "nesterov": st.booleans(), "dampening": st.sampled_from([0.0, 0.3]),
    }),
    around=st.sampled_from([1.0, 0.5]),
    measure=st.sampled_from(["margin", "logit", "loss"]),
)  # fmt: skip
@settings(max_examples=8)
def test_sgd(options: dict[str, Any], around: float, measure: str) -> None:
    options["nesterov"] = options["nesterov"] and options["momentum"] > 0
    options["dampening"] = 0.0 if options["nesterov"] else options["dampening"]
    compare(recipe("mlp", "SGD", {"lr": 0.2, **options}), "mlp", 1e-8, around, measure)


@given(
    optimizer=st.sampled_from(["Adam", "AdamW"]),
    options=st.fixed_dictionaries({
        "betas": st.sampled_from([(0.0, 0.5), (0.9, 0.99)]), "weight_decay": st.sampled_from([0.0, 0.1]),
        "maximize": st.booleans(), "eps": st.sampled_from([1e-3, 1e-6]),
    }),
    around=st.sampled_from([1.0, 0.5]),
)  # fmt: skip
@settings(max_examples=8)
def test_adam(optimizer: str, options: dict[str, Any], around: float) -> None:
    compare(recipe("mlp", optimizer, {"lr": 0.01, **options}), "mlp", 1e-6, around, size=5e-4)


TRAININGS: list[tuple[str, str, dict[str, Any], dict[str, Any], float]] = [
    ("mlp", "SGD", SGD, {"clip": 0.2}, 1.0),
    ("mlp", "SGD", SGD, {"clip": 1e6, "accumulate": 3}, 0.5),
    ("mlp", "Adam", ADAM, {"schedule": lambda step: 1 / (1 + step), "clip": 0.3}, 1.0),
    ("mlp", "SGD+Adam", SGD, {}, 1.0),
    ("mlp", "SGD", SGD, {"weigh": lambda batch: 0.2 + 0.1 * (batch["id"] % 4)}, 0.5),
    ("frozen", "SGD", SGD, {"clip": 0.2}, 1.0),
    ("aside", "SGD", SGD, {"clip": 0.1}, 1.0),
    ("heads", "SGD", SGD, {"clip": 0.2}, 1.0),
    ("heads", "Adam", ADAM, {}, 1.0),
    ("dropout", "SGD", SGD, {"accumulate": 2}, 1.0),
    ("normed", "SGD", SGD, {}, 1.0),
    ("conv", "Adam", ADAM, {}, 0.5),
    ("words", "AdamW", ADAM, {}, 1.0),
    ("speaks", "SGD", SGD, {"clip": 0.5}, 1.0),
    ("lstm", "SGD", SGD, {}, 1.0),
    ("own lstm", "Adam", ADAM, {}, 0.5),
]


@pytest.mark.parametrize(("model", "optimizer", "options", "entries", "around"), TRAININGS)
def test_any_training(
    model: str, optimizer: str, options: dict[str, Any], entries: dict[str, Any], around: float
) -> None:
    rtol = 1e-8 if optimizer == "SGD" else 1e-6
    compare(recipe(model, optimizer, options, **entries), model, rtol, around, size=2e-3 if rtol == 1e-8 else 5e-4)


def test_several_weights_are_averaged_and_a_beginning_is_a_training() -> None:
    memory, end = trained(recipe("mlp", "SGD", SGD), keep="slots")
    short, _ = trained(recipe("mlp", "SGD", SGD), 3)
    inputs, calls = TESTS["flat"], list[tuple[int, int]]()

    def ask(memory: dualform.Memory, around: Any = 1.0, **options: Any) -> Tensor:
        table = memory.influence(memory.model(end), inputs, method="exact", around=around, **options).total(by="visit")
        return torch.from_numpy(table["total"]).view(4, -1)

    one, half = ask(memory), ask(memory, [0.5])
    both = ask(memory, (1, 0.5), progress=lambda step, of: calls.append((step, of)))
    assert_close(both, (one + half) / 2)
    assert not torch.allclose(one, half, rtol=1e-3)
    assert calls == [(step, 12) for step in range(1, 13)]
    assert_close(ask(memory.until(3)), ask(short))


def test_a_model_stays_as_it_is_and_so_do_random_numbers() -> None:
    memory, end = trained(recipe("dropout"))
    end.train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    influence = memory.influence(end, TESTS["flat"], method="exact")
    assert_close(torch.rand(2), expected, rtol=0, atol=0)
    assert all(module.training for module in end.modules())
    assert_close(influence.outputs, memory.influence(end.eval(), TESTS["flat"], method="exact").outputs)


def test_tags_of_single_tokens_are_no_tags_of_examples() -> None:
    memory, end = trained(recipe("speaks", tags=["label", "place", "even"]))
    influence = memory.influence(end, TESTS["tokens"], method="exact", rows=-1)
    assert {*influence.top(1).columns} == {"query", "total", "probability", "visits", "id", "label", "even"}
    assert influence.total(by="even")["visits"].tolist() == [VISITS // 2, VISITS // 2] * 4
    with pytest.raises(UnknownName, match="no tag 'place'; choose from 'id', 'label', 'even'"):
        influence.total(by="place")


def test_what_a_derivative_does_not_hold_is_said() -> None:
    def notes(model: str = "mlp", **entries: Any) -> list[str]:
        memory, end = trained(recipe(model, **entries))
        return list(memory.influence(end, TESTS["flat"], method="exact").notes)

    assert notes() == []
    assert "running means of BatchNorm" in notes("normed")[0]
    assert "not in torch.bfloat16" in notes(model="mlp", autocast=torch.bfloat16)[0]
    squares = lambda model, batch: model(batch["flat"]).square().sum(1)  # noqa: E731
    assert "close to chaos" in notes(losses=squares, options={"lr": 3.0})[0]


@pytest.mark.parametrize(
    ("model", "optimizer", "entries", "reason"),
    [
        (
            "mlp",
            "Adagrad",
            {},
            "exact influence follows SGD and its kin, Adam and AdamW, not Adagrad: use method='fast'",
        ),
        ("mlp", "Muon+SGD", {}, "exact influence does not follow Muon"),
        ("dropping lstm", "SGD", {}, "cannot be differentiated twice"),
    ],
)
def test_trainings_that_are_not_followed(model: str, optimizer: str, entries: dict[str, Any], reason: str) -> None:
    memory, end = trained(recipe(model, optimizer, {"lr": 0.01}, **entries))
    with pytest.raises(NotRecorded, match=reason):
        memory.influence(end, TESTS[MODELS[model][1]], method="exact")


def test_amsgrad_and_states_that_are_handed_on_are_not_followed() -> None:
    memory, end = trained(recipe("mlp", "Adam", {"amsgrad": True}))
    with pytest.raises(NotRecorded, match="does not follow amsgrad: use method='fast'"):
        memory.influence(end, TESTS["flat"], method="exact")
    losses = recipe().losses
    memory, end = trained(recipe(losses=lambda model, batch, state: (losses(model, batch), torch.zeros(1))))
    with pytest.raises(NotRecorded, match="hands a state on from step to step"):
        memory.influence(end, TESTS["flat"], method="exact")


def test_questions_that_make_no_sense() -> None:
    memory, end = trained(recipe())
    inputs = TESTS["flat"]
    for around in (0, -1, 1.5, (), "half", (1, None)):
        with pytest.raises(QueryError, match="around is a weight above 0 and up to 1"):
            memory.influence(end, inputs, method="exact", around=around)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="no method of influence 'exat'; choose from 'fast', 'exact'"):
        memory.influence(end, inputs, method="exat")
    with pytest.raises(UnknownName, match="choose from 'logit', 'margin', 'loss'"):
        memory.influence(end, inputs, of="odds", method="exact")
    for view in (memory.where(label=1), memory.without(id=3)):
        with pytest.raises(QueryError, match="ask a memory without where or without"):
            view.influence(end, inputs, method="exact")
    with pytest.raises(NotRecorded, match="no step was recorded"):
        memory.until(0).influence(end, inputs, method="exact")
    with pytest.raises(NotRecorded, match="ask about fewer inputs at a time"):
        memory.influence(end, inputs, method="exact", max_bytes=100)
