"""Adding a kind takes one file: here one for Hugging Face's Conv1D, whose weight is (d_in, d_out).

Nothing else is told of it. Everything is compared with a dense loop that knows no keys, values or kinds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.errors import RunError
from dualform.kinds import KINDS, Candidate, Kind, register, unregister
from dualform.store import Layer, Use
from tests.dense import Dense, example_gradients

pytestmark = pytest.mark.slow

D_IN, D_OUT, CLASSES, EXAMPLES = 4, 5, 3, 8


class Transposed(nn.Module):
    """y = x W + b, in place of W x + b."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out, dtype=torch.float64) / 2)
        self.bias = nn.Parameter(torch.randn(d_out, dtype=torch.float64) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class TransposedKind(Kind):
    """A linear map whose weight is stored with a row for each entry of the key."""

    name = "Transposed"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, Transposed):
            d_in, d_out = module.weight.shape
            yield Candidate(name, self, module, d_in, d_out, {"weight": (0, d_in), "bias": None})

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        return super().shape(layer, use)[::-1]

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        return super().as_map(use, parameter) if use.columns is None else parameter.mT

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        return super().from_map(use, matrix) if use.columns is None else matrix.mT


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    kind = TransposedKind()
    register(kind)
    yield
    if kind.name in KINDS:
        unregister(kind)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    "Adam": {"lr": 0.05, "weight_decay": 0.05},
}
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


@dataclass
class Trained:
    model: nn.Sequential
    reference: Dense
    states: list[dict[str, Tensor]]  # after 0, 1, ... steps
    memory: dualform.Memory


def network() -> nn.Sequential:
    return nn.Sequential(Transposed(D_IN, D_OUT), nn.Tanh(), Transposed(D_OUT, CLASSES))


def trained(path: Path, kind: str) -> Trained:
    """Nine steps in three chapters, beside a dense reference that is split by label."""
    torch.manual_seed(0)
    model, twin = network(), network()
    optimizer = getattr(torch.optim, kind)(model.parameters(), **OPTIMIZERS[kind])
    inputs, labels = torch.randn(EXAMPLES, D_IN, dtype=torch.float64), torch.arange(EXAMPLES) % CLASSES
    reference, states = Dense(model, kind), [_copy(model)]
    with dualform.record(model, optimizer, path, dtype="float64") as recorder:
        for step in range(9):
            ids = torch.randperm(EXAMPLES)[:5]
            recorder.tag(id=ids, label=labels[ids])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[ids]), labels[ids]).backward()
            twin.load_state_dict(model.state_dict())
            gradients = _by_label(twin, inputs[ids], labels[ids])
            reference.step(gradients, {name: dict(optimizer.param_groups[0]) for name in gradients})
            optimizer.step()
            states.append(_copy(model))
            if step % 3 == 2:
                recorder.sync()
    return Trained(model, reference, states, dualform.load(path))


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _by_label(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, dict[Any, Tensor]]:
    """The gradient of each parameter, split by label."""
    own = example_gradients(model, inputs, labels, list(range(len(labels))), 1.0)
    return {
        name: {
            label: torch.stack([by_row[row] for row in range(len(labels)) if labels[row] == label]).sum(dim=0)
            for label in set(labels.tolist())
        }
        for name, by_row in own.items()
    }


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@each_optimizer
def test_it_is_recorded_and_certified(tmp_path: Path, optimizer: str) -> None:
    run = trained(tmp_path / "run", optimizer)
    certificate = run.memory.verify()
    assert certificate.ok, str(certificate)
    assert certificate.steps_audited == certificate.steps_certified == run.memory.steps == 9
    assert run.memory.layers == ["0", "2"]
    assert {layer["kind"] for layer in run.memory.summary()["layers"].values()} == {"Transposed"}
    for layer in run.memory.layers:
        for name, weight in run.memory.weights(layer).items():
            assert weight.shape == run.states[-1][name].shape
            assert_close(weight, run.states[-1][name])


@each_optimizer
def test_its_past_is_what_it_was(tmp_path: Path, optimizer: str) -> None:
    run = trained(tmp_path / "run", optimizer)
    for step, state in enumerate(run.states):
        for name, parameter in run.memory.until(step).model(run.model).named_parameters():
            assert_close(parameter.detach(), state[name])


@each_optimizer
def test_muted_it_is_the_dense_loop_without_these_gradients(tmp_path: Path, optimizer: str) -> None:
    run = trained(tmp_path / "run", optimizer)
    shares = run.memory.group_weights(by="label")
    for label in range(CLASSES):
        others = {*range(CLASSES)} - {label}
        muted, model = run.memory.without(label=label), shares.model(run.model, without=[label])
        for layer in run.memory.layers:
            for name, weight in muted.weights(layer).items():
                expected = run.reference.weight(name, others)
                assert_close(weight, expected)
                assert_close(model.get_parameter(name).detach(), expected)
                assert (expected - run.states[-1][name]).norm() > 0.01 * expected.norm()


@each_optimizer
def test_its_output_is_the_modules_and_contributions_add_up(tmp_path: Path, optimizer: str) -> None:
    run = trained(tmp_path / "run", optimizer)
    inputs = torch.randn(6, D_IN, dtype=torch.float64)
    spotlight = run.memory.attend(run.model, inputs)
    assert spotlight.note is None
    hidden = run.model[1](run.model[0](inputs)).detach()
    assert_close(spotlight["0"].queries, inputs)
    assert_close(spotlight["2"].queries, hidden)
    assert_close(spotlight["0"].output(), run.model[0](inputs).detach())
    assert_close(spotlight["2"].output(), run.model(inputs).detach())
    contribution = spotlight["2"].contribution([0, 1, 2, 0, 1, 2])
    assert_close(contribution.output(), run.model(inputs).detach()[range(6), [0, 1, 2, 0, 1, 2]])
    for table in (contribution.total(), contribution.total(by="label"), contribution.timeline(4)):
        totals = [table.where(query=query)["total"].sum() for query in range(6)]
        assert_close(contribution.initial() + torch.tensor(totals, dtype=torch.float64), contribution.output())
    slots = run.memory.slots("2")
    everything = contribution.top(slots)
    scores = [everything.where(query=query)["score"].sum() for query in range(6)]
    assert_close(contribution.initial() + torch.tensor(scores, dtype=torch.float64), contribution.output())


def test_its_attention_weights_are_products_with_its_inputs(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(Transposed(D_IN, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(12, D_IN, dtype=torch.float64), torch.arange(12) % CLASSES
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float64") as recorder:
        for rows in torch.arange(12).split(4):
            recorder.tag(id=rows, label=labels[rows])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    memory, queries = dualform.load(tmp_path / "run"), torch.randn(9, D_IN, dtype=torch.float64)
    for some, way in ((queries[:1], "a scan"), (queries[1:], "an index")):
        weights, asked = some @ inputs.mT, memory.attend({"0": some})["0"]  # (queries, slots)
        assert way in asked.plan(dualform.Top(3)).explain()
        best, totals = asked.top(3), asked.total(by="label")["total"].reshape(-1, CLASSES)
        np.testing.assert_allclose(best["score"], weights.topk(3).values.reshape(-1), rtol=1e-9)
        np.testing.assert_array_equal(best["slot"], weights.topk(3).indices.reshape(-1))
        for label in range(CLASSES):
            np.testing.assert_allclose(totals[:, label], weights[:, labels == label].sum(dim=1), rtol=1e-9)


def test_a_run_of_a_kind_that_nobody_registered_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run", "SGD")
    unregister(KINDS["Transposed"])
    with pytest.raises(RunError) as refused:
        dualform.load(tmp_path / "run")
    assert str(tmp_path / "run" / "manifest.json") in str(refused.value)
    assert "'Transposed'" in str(refused.value)
    assert "register" in str(refused.value)


def test_a_layer_that_does_not_fit_its_kind_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run", "SGD")

    class Other(TransposedKind):
        def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
            return super().shape(layer, use)[::-1]

    register(Other())
    with pytest.raises(RunError, match="manifest.json is a corrupt manifest: layer '0'"):
        dualform.load(tmp_path / "run")
