"""A parameter with several uses: a tiny language model whose embedding is its head.

Its weight E is trained by torch for real, and written down use by use: the slots of the embedding "wte" and those of
the head. The reference is a dense loop over gradients by autograd of a model that is not tied, so that each use has a
gradient of its own.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.algebra import RULES
from dualform.store import (
    Column,
    InMemory,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    Parameter,
    Rows,
    RunWriter,
    StepRecord,
    Storage,
    Use,
)
from tests.dense import Dense

NAME = "wte.weight"
USES = ("wte", "head")
LABELS, STEPS, SEALED = 3, 8, (2, 5)  # snapshots after these many steps, and at the end
CLIPPED = 4  # a step of which half the gradient was taken

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05},
    "Adam": {"lr": 0.05, "weight_decay": 0.05},
}
# as many words as units is a trap: then both uses look alike
CASES = [(kind, words, units) for kind in OPTIMIZERS for words, units in ((7, 4), (5, 5))]
each_case = pytest.mark.parametrize(("kind", "words", "units"), CASES)


class LanguageModel(nn.Module):
    """The next word, by the one before."""

    def __init__(self, words: int, units: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(words, units, dtype=torch.float64)
        self.head = nn.Linear(units, words, bias=False, dtype=torch.float64)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.wte(ids)))
        return logits


@dataclass
class Trained:
    model: LanguageModel
    memory: dualform.Memory
    states: list[Tensor]  # E after 0, 1, ... steps
    reference: Dense  # split by use and label


def layers(words: int, units: int) -> tuple[Layer, Layer]:
    weight = Parameter(NAME, (words, units), 0)
    return (
        Layer("wte", "Embedding", words, units, KeyLayout(1, index=True), (Use(weight, (0, words)),)),
        Layer("head", "Linear", units, words, KeyLayout(units), (Use(weight, (0, units)),)),
    )


@cache
def trained(kind: str, words: int, units: int, uses: tuple[str, ...] = USES) -> Trained:
    """Train, and write down what these uses of the weight saw."""
    torch.manual_seed(0)
    backend = InMemory()
    model = LanguageModel(words, units)
    optimizer = getattr(torch.optim, kind)(model.parameters(), **OPTIMIZERS[kind])
    recorded = tuple(layer for layer in layers(words, units) if layer.name in uses)
    described = Optimizer(kind, RULES[kind].columns)
    manifest = Manifest("0123456789abcdef", "", "test", Storage("float64"), (described,), recorded)
    writer = RunWriter.begin(backend, manifest, state(model, optimizer), 1 << 20, overwrite=False)
    reference, states = Dense(model, kind), [model.wte.weight.detach().clone()]
    for step in range(STEPS):
        ids, targets, labels = torch.randint(words, (6,)), torch.randint(words, (6,)), torch.arange(6) % LABELS
        factor = 0.5 if step == CLIPPED else 1.0
        group = optimizer.param_groups[0]
        line = [1.0, *RULES[kind].read(group, optimizer.state[model.wte.weight])]
        reference.step({NAME: by_use_and_label(states[-1], ids, targets, labels, factor)}, {NAME: dict(group)})
        passes = backward(model, ids, targets, labels, factor)
        optimizer.step()
        states.append(model.wte.weight.detach().clone())
        rows = {name: [passes[name]] for name in uses}
        tags = {"label": "int", "id": "int"}
        writer.append(StepRecord({NAME: line}, dict.fromkeys(uses, 0.0), rows), tags)
        if step + 1 in SEALED:
            writer.seal(state(model, optimizer))
    writer.close(state(model, optimizer), "complete")
    return Trained(model, dualform.load(backend), states, reference)


def state(model: LanguageModel, optimizer: torch.optim.Optimizer) -> dict[str, Column]:
    entries = optimizer.state.get(model.wte.weight, {})
    tensors = {f"optimizers/0/{NAME}/{entry}": torch.as_tensor(value) for entry, value in entries.items()}
    tensors[f"parameters/{NAME}"] = model.wte.weight
    return {name: Column([tensor.detach().numpy().copy()]) for name, tensor in tensors.items()}


def backward(model: LanguageModel, ids: Tensor, targets: Tensor, labels: Tensor, factor: float) -> dict[str, Rows]:
    """Leave the gradient, times the factor, on the weight; return what each use saw."""
    embedded = model.wte(ids)
    hidden = torch.tanh(embedded)
    logits = model.head(hidden)
    embedded.retain_grad()
    logits.retain_grad()
    model.zero_grad()
    F.cross_entropy(logits, targets).backward()
    assert model.wte.weight.grad is not None
    model.wte.weight.grad *= factor
    keys = {"wte": ids[:, None].int(), "head": hidden.detach()}
    values = {"wte": embedded.grad, "head": logits.grad}
    tags = {"label": labels.numpy(), "id": ids.numpy()}
    return {
        name: Rows(keys[name].numpy(), None, values[name].numpy(), None, np.full(1, factor), tags, may_repeat=False)
        for name in USES
    }


def by_use_and_label(
    weight: Tensor, ids: Tensor, targets: Tensor, labels: Tensor, factor: float
) -> dict[tuple[str, int], Tensor]:
    """The gradient of a model that has a weight for each use."""
    found = {(use, label): torch.zeros_like(weight) for use in USES for label in range(LABELS)}
    for word, target, label in zip(ids, targets, labels.tolist(), strict=True):
        apart = [weight.clone().requires_grad_() for _ in USES]
        loss = F.cross_entropy(torch.tanh(apart[0][word]) @ apart[1].mT, target) / len(ids)
        for use, gradient in zip(USES, torch.autograd.grad(loss, apart), strict=True):
            found[use, label] += factor * gradient
    return found


def without(run: Trained, *muted: tuple[str, int]) -> Tensor:
    """The weight of the dense loop, had these uses and labels not been in its gradients."""
    return run.reference.weight(NAME, {(use, label) for use in USES for label in range(LABELS)} - {*muted})


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@each_case
def test_the_reference_is_what_torch_did(kind: str, words: int, units: int) -> None:
    run = trained(kind, words, units)
    assert_close(without(run), run.model.wte.weight.detach())
    assert run.model.head.weight is run.model.wte.weight


@each_case
def test_both_uses_are_certified(kind: str, words: int, units: int) -> None:
    certificate = trained(kind, words, units).memory.verify()
    assert certificate.ok, str(certificate)
    assert set(certificate.layers) == {*USES}
    assert certificate.relative_error < 1e-12
    for layer in certificate.layers.values():
        assert [(one.first_step, one.last_step) for one in layer.chapters] == [(0, 2), (2, 5), (5, 8)]


@each_case
@pytest.mark.parametrize("use", USES)
def test_one_use_alone_is_not(kind: str, words: int, units: int, use: str) -> None:
    certificate = trained(kind, words, units, (use,)).memory.verify()
    assert not certificate.ok
    assert certificate.relative_error > 0.01


@each_case
def test_either_use_has_the_whole_weight(kind: str, words: int, units: int) -> None:
    run = trained(kind, words, units)
    for step, weight in enumerate(run.states):
        view = run.memory.until(step)
        for use in USES:
            assert_close(view.weights(use)[NAME], weight)
        model = view.model(run.model)
        assert isinstance(model, LanguageModel)
        assert model.head.weight is model.wte.weight
        assert_close(model.wte.weight.detach(), weight)


@each_case
def test_without_a_label_is_without_the_slots_of_both_uses(kind: str, words: int, units: int) -> None:
    run = trained(kind, words, units)
    for label in range(LABELS):
        muted, expected = run.memory.without(label=label), without(run, *((use, label) for use in USES))
        for use in USES:
            assert_close(muted.weights(use)[NAME], expected)
            assert_close(run.memory.added(use)[NAME] - muted.added(use)[NAME], without(run) - expected, 1e-11)
            assert _distance(without(run, (use, label)), expected) > 0.01  # one use muted is not enough
        model = muted.model(run.model)
        assert isinstance(model, LanguageModel)
        assert_close(model.head.weight.detach(), expected)


@each_case
def test_shares_are_what_without_takes_away(kind: str, words: int, units: int) -> None:
    run = trained(kind, words, units)
    shares = run.memory.group_weights(by="label")
    assert shares.groups["label"].tolist() == list(range(LABELS))
    for label in range(LABELS):
        expected = without(run, *((use, label) for use in USES))
        for use in USES:
            assert_close(without(run) - shares.added(use, [label])[NAME], expected)
        assert_close(shares.model(run.model, without=[label]).get_parameter(NAME).detach(), expected)


@each_case
@pytest.mark.parametrize("until", [STEPS, STEPS - 1])
def test_to_mute_in_one_layer_is_to_mute_the_weight(kind: str, words: int, units: int, until: int) -> None:
    """Whichever layer is named, and whether or not there is a snapshot of the view."""
    run = trained(kind, words, units)
    view = run.memory.until(until)
    shares, expected = view.group_weights(by="label"), view.without(label=1).weights("wte")[NAME]
    for use in USES:
        assert_close(shares.model(run.model, without=[1], layers=[use]).get_parameter(NAME).detach(), expected)


@each_case
def test_the_output_is_that_of_the_tied_weight(kind: str, words: int, units: int) -> None:
    run = trained(kind, words, units)
    queries = torch.randn(5, units, dtype=torch.float64)
    weight = run.model.wte.weight.detach()
    assert_close(run.memory.attend({"head": queries})["head"].output(), queries @ weight.mT)
    spotlight = run.memory.attend(run.model, torch.arange(words))
    assert spotlight.note is None
    assert_close(spotlight["wte"].output(), weight)
    assert_close(spotlight["head"].output(), run.model(torch.arange(words)).detach())


@each_case
@pytest.mark.parametrize("use", USES)
def test_what_a_use_of_the_weight_has_added_is_its_contribution(kind: str, words: int, units: int, use: str) -> None:
    """By use and label, against pieces of the dense loop: of either use's slots, to either use's output."""
    run = trained(kind, words, units)
    layer = run.memory.attend(run.model, torch.arange(words))[use]
    (other,) = layer.shares_with
    direction = torch.randn(layer.output().shape[1], dtype=torch.float64)

    def output(weight: Tensor) -> Tensor:
        return layer.queries @ (weight if use == "wte" else weight.mT) @ direction

    everything = {(name, label) for name in USES for label in range(LABELS)}
    assert_close(layer.contribution(direction).initial(), output(without(run, *everything)), 1e-11)
    for slots_of in (use, other):
        totals = layer.contribution(direction, slots_of=slots_of).total(by="label")
        for label in range(LABELS):
            piece = run.reference.pieces[NAME][slots_of, label].weight
            assert_close(torch.from_numpy(totals.where(label=label)["total"]), output(piece), 1e-11)


@each_case
@pytest.mark.parametrize("use", USES)
def test_effective_weights_are_of_the_layers_own_slots(kind: str, words: int, units: int, use: str) -> None:
    run = trained(kind, words, units)
    layer = run.memory.attend(run.model, torch.arange(words))[use]
    scores = layer.effective(1).top(3)
    assert len(scores) == 3 * words
    assert layer.contribution(1).slots_of == use


@each_case
def test_attention_weights_are_those_of_one_uses_slots(kind: str, words: int, units: int) -> None:
    run = trained(kind, words, units)
    spotlight = run.memory.attend(run.model, torch.tensor([0]))
    assert spotlight["wte"].top(1).where(query=0)["id"].tolist() == [0]
    assert spotlight["wte"].total()["total"].tolist() == [run.memory.where(id=0).slots("wte")]


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
