"""method="fast" is what dense matrices in float64 make of the same training."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, UnknownName
from dualform.influence.result import Influence
from tests.influence.dense import Reference, together
from tests.influence.loops import (
    BATCHES,
    CLASSES,
    EXAMPLES,
    IDS,
    INPUTS,
    LABELS,
    PROBES,
    SIZE,
    SQUARES,
    Losses,
    Mixed,
    ask,
    margin,
    mlp,
    record,
    sgd,
)  # fmt: skip
from tests.influence.trainings import TESTS, recipe, trained


def compare(influence: Influence, scores: Tensor, ids: Tensor) -> None:
    """By example, and by step: of scores (tests, visits)."""
    tests, examples = len(scores), torch.unique(ids)
    of_ids = torch.stack([scores[:, ids == one].sum(1) for one in examples], dim=1)
    of_steps = scores.view(tests, BATCHES, -1).sum(2)
    assert influence.examples["id"].tolist() == examples.tolist() * tests
    for table, expected in (influence.examples, of_ids), (influence.timeline(BATCHES), of_steps):
        found = torch.from_numpy(table["total"]).view(tests, -1)
        assert_close(found, expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))


def check(make: Callable[[Any], torch.optim.Optimizer], clip: float = 1e9, parts: int = 1) -> None:
    model, classes = mlp(), torch.tensor([0, 2, 1])
    again = deepcopy(model)
    memory = record(model, make(model.parameters()), parts=parts, clip=clip)
    reference = Reference(again, make(again.parameters()), [(INPUTS[ids, 0], LABELS[ids, 0]) for ids in IDS], clip)
    influence = memory.influence(model, PROBES[:, 0], classes)
    scores = reference.scores(PROBES[:, 0], lambda logits: margin(logits, classes), 3)
    assert not influence.notes
    compare(influence, together(scores, torch.cat(IDS)), torch.cat(IDS))


@given(
    options=st.fixed_dictionaries({
        "lr": st.sampled_from([0.1, 0.5]), "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        "weight_decay": st.sampled_from([0.0, 0.1]), "nesterov": st.booleans(),
        "dampening": st.sampled_from([0.0, 0.3]), "maximize": st.booleans(),
    }),
    parts=st.sampled_from([1, 2]),
    clip=st.sampled_from([1e9, 0.3]),
)  # fmt: skip
@settings(max_examples=8)
def testsgd(options: dict[str, Any], parts: int, clip: float) -> None:
    options["nesterov"] = options["nesterov"] and options["momentum"] > 0
    options["dampening"] = 0.0 if options["nesterov"] else options["dampening"]
    check(lambda parameters: torch.optim.SGD(parameters, **options), clip, parts)


@given(
    optimizer=st.sampled_from([torch.optim.Adam, torch.optim.AdamW]),
    options=st.fixed_dictionaries({
        "betas": st.sampled_from([(0.0, 0.5), (0.9, 0.99)]), "eps": st.sampled_from([1e-8, 1e-3]),
    }),
)  # fmt: skip
@settings(max_examples=6)
def test_adam(optimizer: Any, options: dict[str, Any]) -> None:
    decay = {"weight_decay": 0.1 if optimizer is torch.optim.AdamW else 0.0}
    check(lambda parameters: optimizer(parameters, lr=0.02, **options, **decay))


def test_decay_that_goes_through_the_gradient() -> None:
    """Exactly, where all entries are divided by the same."""
    check(lambda parameters: torch.optim.Adam(parameters, lr=30.0, eps=100.0, weight_decay=0.3))


@pytest.mark.parametrize("row", [-1, 1])
def test_rows_of_which_each_sees_those_before(row: int) -> None:
    """Visits are tokens; of the outputs one token is asked about, to which all have added."""
    torch.manual_seed(1)
    model, classes = Mixed().double(), torch.tensor([0, 2, 1])
    again = deepcopy(model)
    memory = record(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5), INPUTS, LABELS)

    class Flat(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            out: Tensor = again(rows)
            return out.flatten(0, 1)

    flat = Flat()
    flat.again = again
    optimizer = torch.optim.SGD(again.parameters(), lr=0.5, momentum=0.5)
    reference = Reference(flat, optimizer, [(INPUTS[ids], LABELS[ids].flatten()) for ids in IDS])
    influence = memory.influence(model, PROBES, classes, rows=row)
    scores = reference.scores(PROBES, lambda logits: margin(logits.view(3, 4, -1)[:, row], classes), 3)
    ids = torch.cat(IDS).repeat_interleave(4)
    compare(influence, together(scores, ids), ids)
    labels = LABELS[torch.cat(IDS)].flatten()
    expected = torch.stack([together(scores, ids)[:, labels == label].sum(1) for label in range(CLASSES)], dim=1)
    assert_close(torch.from_numpy(influence.total(by="label")["total"]).view(3, -1), expected, rtol=1e-3, atol=1e-3)
    with pytest.raises(QueryError, match="say whose target it is, such as rows=-1"):
        memory.influence(model, PROBES)


def test_rows_that_are_left_out_of_the_loss_are_not_counted() -> None:
    """As padding is, by ignore_index: the loss is a mean over the others."""
    model, classes = mlp(), torch.tensor([0, 2, 1])
    labels = LABELS[:, 0].clone()
    labels[[1, 5, 8]] = -100
    again = deepcopy(model)
    memory = record(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5), labels=labels)
    optimizer = torch.optim.SGD(again.parameters(), lr=0.5, momentum=0.5)
    reference = Reference(again, optimizer, [(INPUTS[ids, 0], labels[ids]) for ids in IDS])
    influence = memory.influence(model, PROBES[:, 0], classes)
    assert not influence.notes
    scores = reference.scores(PROBES[:, 0], lambda logits: margin(logits, classes), 3)
    compare(influence, together(scores, torch.cat(IDS)), torch.cat(IDS))


class Placed(Mixed):
    """All inputs of a batch share the rows of a position table."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Linear(4, 5)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows + self.places(torch.eye(4, dtype=rows.dtype)))


@pytest.mark.parametrize(
    ("inputs", "note"),
    [
        (3, "without 'places', whose rows belong to no single input"),
        (1, "slots of 'places' that belong to no single example are in nobody's influence"),
    ],
)
def test_what_is_of_no_single_example_is_in_nobodys_influence(inputs: int, note: str) -> None:
    found = []
    for exclude in ([], ["places"]):
        torch.manual_seed(1)
        model = Placed().double()
        memory = record(model, torch.optim.SGD(model.parameters(), lr=0.5), INPUTS, LABELS, exclude=exclude)
        found.append(memory.influence(model, PROBES[:inputs], 1, rows=-1))
    with_table, without = found
    assert (with_table.notes, without.notes) == ([note], [])
    np.testing.assert_array_equal(with_table.examples["total"], without.examples["total"])


LOSSES: dict[str, tuple[Losses, str]] = {
    "mse": (SQUARES, "are not those of a softmax cross-entropy"),
    "bce": (
        lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, CLASSES).double()),
        "are not those of a softmax cross-entropy",
    ),
    "sum": (lambda out, y: F.cross_entropy(out, y, reduction="sum"), "the loss is not a mean over the examples"),
    "smoothed": (
        lambda out, y: F.cross_entropy(4 * out, y, label_smoothing=0.7),
        "are not those of a softmax cross-entropy",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_other_losses_are_estimated_by_whitened_contributions(name: str) -> None:
    losses, reason = LOSSES[name]
    model, classes = mlp(), torch.tensor([0, 2, 1])
    again = deepcopy(model)
    memory = record(model, sgd(model, momentum=0.5), losses=losses)
    batches = [(INPUTS[ids, 0], LABELS[ids, 0]) for ids in IDS]
    reference = Reference(again, sgd(again, momentum=0.5), batches, losses=losses)
    influence = memory.influence(model, PROBES[:, 0], classes)
    assert len(influence.notes) == 1
    assert "by whitened contributions alone" in influence.notes[0]
    assert reason in influence.notes[0]
    white = reference.scores(PROBES[:, 0], lambda logits: margin(logits, classes), 3)[1]
    compare(influence, white, torch.cat(IDS))
    assert influence.notes[0] in repr(influence)
    assert "<pre>" in influence._repr_html_()


class Elementwise(nn.Module):
    """One layer whose second moments are of rank one, so that nothing of it is an estimate."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which
        kinds: dict[str, Callable[[], nn.Module]] = {
            "words": lambda: nn.Embedding(10, 1), "norm": lambda: nn.RMSNorm(5),
            "grouped": lambda: nn.Conv1d(4, 4, 1, groups=4, bias=False),
        }  # fmt: skip
        self.layer = kinds[which]()
        self.head = nn.Linear({"words": 5, "norm": 5, "grouped": 20}[which], CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        inputs = {"words": lambda: (rows[:, 0].abs() * 4).long().clamp(max=9), "norm": lambda: rows[:, 0]}
        out: Tensor = self.head(self.layer(inputs.get(self.which, lambda: rows)()).flatten(1))
        return out


@pytest.mark.parametrize("which", ["words", "norm", "grouped"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_what_is_neither_whitened_nor_corrected_counts_as_it_was_added(which: str, optimizer: Any) -> None:
    torch.manual_seed(1)
    model = Elementwise(which).double()
    options = {"lr": 0.1} if optimizer is torch.optim.SGD else {"lr": 0.05, "betas": (0.0, 0.5)}
    memory = record(model, optimizer(model.parameters(), **options), INPUTS, LABELS[:, 0], SQUARES, layers="layer")
    influence = memory.influence(model, PROBES, 1, of="logit")
    assert any("'layer' counts as it was added, neither whitened nor corrected" in note for note in influence.notes)
    contribution = memory.attend(model, PROBES)["layer"].contribution(1).total(by="id")
    added = torch.zeros(3, EXAMPLES, dtype=torch.float64)
    owners = np.repeat(np.arange(3), max(1, (contribution["query"].max() + 1) // 3))
    added.index_put_(
        (torch.from_numpy(owners[contribution["query"]]), torch.from_numpy(contribution["id"]).long()),
        torch.from_numpy(contribution["total"]), accumulate=True,
    )  # fmt: skip
    found = torch.from_numpy(influence.examples["total"]).view(3, -1)
    assert_close(found, added[:, influence.examples["id"][: found.shape[1]]], rtol=1e-4, atol=1e-5)


class TimeFirst(Mixed):
    """The same, but that the slots of its first layer come in another order."""

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(rows.transpose(0, 1)).cumsum(0).tanh().transpose(0, 1))
        return out


def test_slots_in_another_order_are_told_by_their_ids() -> None:
    found = []
    for kind in (Mixed, TimeFirst):
        torch.manual_seed(1)
        model = kind().double()
        memory = record(model, sgd(model), INPUTS, LABELS, SQUARES)
        found.append(memory.influence(model, PROBES, 1, rows=-1))
    near(found[1], found[0], 1e-4)


def near(found: Influence, expected: Influence, share: float) -> None:
    """Of the size of what is expected."""
    a, b = found.examples["total"], expected.examples["total"]
    assert np.abs(a - b).max() <= share * np.abs(b).max()


@pytest.mark.parametrize(("dtype", "share"), [("float32", 1e-4), ("float16", 2e-2)])
def test_precisions(dtype: str, share: float) -> None:
    model = mlp()
    whole = record(model, torch.optim.SGD(model.parameters(), lr=0.1))
    again = mlp()
    near(ask(record(again, torch.optim.SGD(again.parameters(), lr=0.1), dtype=dtype), again), ask(whole, model), share)


def test_a_training_in_half_precision() -> None:
    whole, half = (trained(recipe("mlp", autocast=precision), keep="slots") for precision in (None, torch.bfloat16))
    found, expected = (memory.influence(model, TESTS["flat"], 1) for memory, model in (half, whole))
    near(found, expected, 0.05)


def test_a_beginning_is_a_training_and_slots_that_are_made_again_are_slots() -> None:
    of = recipe("mlp", "Adam", {"lr": 0.05})
    stored, model = trained(of, keep="slots", dtype="float64")
    made, _ = trained(of, keep="snapshots", dtype="float64")
    short, half = trained(of, 3, keep="slots", dtype="float64")

    def totals(memory: dualform.Memory, model: nn.Module) -> Any:
        return memory.influence(model, TESTS["flat"], 1).total(by="visit")["total"]

    np.testing.assert_allclose(totals(made, model), totals(stored, model), rtol=1e-4)
    np.testing.assert_allclose(totals(stored.until(3), half), totals(short, half), rtol=1e-4)


def test_what_muon_has_trained_is_left_out_and_said() -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, CLASSES, bias=False)).double()

    def muon(part: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Muon(part.parameters(), lr=0.05)

    memory = record(model, [muon(model[0]), sgd(model[2])])
    influence = ask(memory, model)
    assert influence.notes == ["without '0', which Muon has trained: its steps are not followed back"]
    other = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, CLASSES, bias=False)).double()
    notes = " ".join(ask(record(other, [sgd(other[0]), muon(other[2])]), other).notes)
    assert "without '2'" in notes
    assert "layer '2' was trained by Muon" in notes
    last = nn.Sequential(nn.Linear(5, CLASSES, bias=False)).double()
    with pytest.raises(QueryError, match="all layers were trained by Muon"):
        ask(record(last, muon(last)), last)


def test_two_optimisers_are_followed_each_by_its_own_steps() -> None:
    """Of layers one of which learns nothing, influence is that through the other."""
    model = mlp()
    both = record(model, [sgd(model[0], momentum=0.9), torch.optim.Adam(model[2].parameters(), lr=0.0)])
    again = mlp()
    one = record(again, [sgd(again[0], momentum=0.9), sgd(again[2], lr=0.0)])
    near(ask(both, model), ask(one, again), 1e-5)
    assert not ask(both, model).notes


def test_options_and_weights_that_are_not_followed_are_said() -> None:
    model = mlp()
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1}, {"params": biases},
    ]  # fmt: skip
    notes = ask(record(model, torch.optim.SGD(groups, lr=0.1)), model).notes
    assert notes == ["parameters of '0', '2' had options of their own: all are followed by the first one's"]
    tied = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    tied[2].weight = tied[0].weight
    notes = ask(record(tied, sgd(tied)), tied).notes
    assert notes == ["of weights that '0', '2' share, each layer's slots are followed through that layer alone"]


def test_without_ids_there_are_visits_and_other_tags() -> None:
    model = mlp()
    influence = ask(record(model, sgd(model), tags=("label",)), model)
    assert influence.total(by="label")["visits"].sum() == 3 * BATCHES * SIZE
    assert influence.top(1, per="label").columns[:2] == ["query", "total"]
    with pytest.raises(UnknownName, match="no tag 'id'; choose from 'label'"):
        influence.top(1)
    conv = nn.Sequential(nn.Conv1d(4, 2, 2), nn.Flatten(), nn.Linear(8, CLASSES)).double()
    memory = record(conv, sgd(conv), INPUTS, LABELS[:, 0], tags=("label",))
    with pytest.raises(QueryError, match="no tag 'id' says whose they are"):
        memory.influence(conv, PROBES)


def test_a_convolution_is_the_linear_layer_of_its_patches() -> None:
    """Which has several rows of each example, and so told by ids: in any order of them."""
    torch.manual_seed(1)
    conv = nn.Sequential(nn.Conv1d(4, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, CLASSES)).double()

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.head = nn.Linear(8, 2), nn.Linear(8, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            patches = rows.unfold(2, 2, 1).transpose(1, 2).flatten(2)  # (batch, places, channels x 2)
            out: Tensor = self.head(self.map(patches).tanh().mT.flatten(1))
            return out

    patches = Patches().double()
    patches.map.load_state_dict({"weight": conv[0].get_parameter("weight").flatten(1), "bias": conv[0].bias})
    patches.head.load_state_dict(conv[3].state_dict())
    options = {"lr": 0.3, "momentum": 0.5}
    memory = record(conv, sgd(conv, **options), INPUTS, LABELS[:, 0])
    reference = Reference(patches, sgd(patches, **options), [(INPUTS[ids], LABELS[ids, 0]) for ids in IDS])
    classes = torch.tensor([0, 2, 1])
    influence = memory.influence(conv, PROBES, classes)
    scores = reference.scores(PROBES, lambda logits: margin(logits, classes), 3)
    compare(influence, together(scores, torch.cat(IDS)), torch.cat(IDS))


@pytest.mark.parametrize("of", ["margin", "logit", "loss"])
def test_signs_are_those_of_retraining(of: str) -> None:
    """Without the examples of a test's own class, what speaks for it is less, and the loss more."""
    images, labels = TESTS["flat"], torch.arange(4) % 3
    memory, model = trained(recipe("mlp", "SGD", {"lr": 0.5}), keep="slots")
    influence = memory.influence(model, images, labels, of=of)
    exact = memory.influence(model, images, labels, of=of, method="exact")
    for label in range(3):
        expected = memory.retrain(without={"label": label})
        logits, own = expected(images), torch.arange(4)
        loss = F.cross_entropy(logits, labels, reduction="none")
        now = {"logit": logits[own, labels], "loss": loss, "margin": margin(logits, labels)}[of].detach()
        for asked in (influence, exact):
            change = asked.of(without={"label": label}) - asked.outputs
            true = now - asked.outputs
            large = true.abs() > 0.5 * true.abs().max()
            assert (change.sign() == true.sign())[large].all()
        assert torch.corrcoef(torch.stack([exact.of(without={"label": label}) - exact.outputs, true]))[0, 1] > 0.9


def test_heads_that_take_turns_are_for_the_other_method() -> None:
    memory, model = trained(recipe("heads"), keep="slots")
    with pytest.raises(QueryError, match="did not go through layer 'first'.*use method='exact'"):
        memory.influence(model, TESTS["flat"])
