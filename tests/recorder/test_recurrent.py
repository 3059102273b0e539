"""Recorded trainings with recurrent layers and cells, against a dense float64 loop that is fed example by example."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform.errors import QueryError
from tests.beside_dense import CLASSES, FEW, Trained, assert_close, check_in_a_folder, train
from tests.optimizers import options
from tests.recorder.loops import assert_exact, record, sgd

TIME, WIDTH, HIDDEN = 3, 2, 3
KINDS = {"LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN", "LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}


class Classifier(nn.Module):
    """What the last step of sequences says, (batch, time, width): by a recurrent layer, or by a cell in a loop."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        cell = kind.endswith("Cell")
        self.rnn = getattr(nn, kind)(WIDTH, HIDDEN, **options, **({} if cell else {"batch_first": True}))
        width = (options.get("proj_size") or HIDDEN) * (2 if options.get("bidirectional") else 1)
        self.fc = nn.Linear(width, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.rnn, nn.RNNBase):
            rows, _ = self.rnn(x)
            return self._logits(rows.mean(dim=1))
        state: Any = None
        for time in range(TIME):
            state = self.rnn(x[:, time], state)
        return self._logits(state[0] if isinstance(self.rnn, nn.LSTMCell) else state)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.fc(hidden)
        return logits


@st.composite
def classifiers(draw: st.DrawFn, kind: str) -> Classifier:
    options: dict[str, Any] = {"bias": draw(st.booleans())}
    if kind.startswith("RNN"):
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    if not kind.endswith("Cell"):
        options |= {"num_layers": draw(st.integers(1, 2)), "bidirectional": draw(st.booleans())}
    if kind == "LSTM":
        options["proj_size"] = draw(st.sampled_from([0, 2]))
    torch.manual_seed(draw(st.integers(0, 99)))
    return Classifier(kind, **options)


def trained(path: Path, model: Classifier, optimizer_name: str, given: dict[str, Any]) -> Trained:
    """Recorded is our module, the reference has torch's own."""
    twin = deepcopy(model)
    dualform.unfuse(model)
    return train(path, model, twin, torch.randn(8, TIME, WIDTH, dtype=torch.float64), optimizer_name, given)


def for_each(kind: str, check: Callable[[Trained], None]) -> None:
    @FEW
    @given(classifiers(kind), options())
    def train_and_check(model: Classifier, optimizer: tuple[str, dict[str, Any]]) -> None:
        check_in_a_folder(lambda path: trained(path, model, *optimizer), check)

    train_and_check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_certified_and_every_view_is_the_dense_loops(kind: str) -> None:
    def check(run: Trained) -> None:
        memory, last = run.memory, {name: p.detach() for name, p in run.model.named_parameters()}
        kinds = {layer["kind"] for name, layer in memory.summary()["layers"].items() if name != "fc"}
        assert kinds == {KINDS[kind]}
        certificate = memory.verify()
        assert certificate.ok, str(certificate)
        assert memory.coverage.attributed == 1
        shares = memory.group_weights(by="label")
        seen = set()
        for layer in memory.layers:
            for name, weight in memory.weights(layer).items():
                seen.add(name)
                assert_close(weight, last[name])
            for label in range(CLASSES):
                kept = {*range(CLASSES)} - {label}
                muted = shares.model(run.model, without=[label])
                for name, weight in memory.without(label=label).weights(layer).items():
                    assert_close(weight, run.reference.weight(name, kept))
                    assert_close(muted.get_parameter(name).detach(), run.reference.weight(name, kept))
                for name, weight in memory.where(label=label).weights(layer).items():
                    assert_close(weight, run.reference.weight(name, [label]))
        assert seen == set(last)

    for_each(kind, check)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_contributions_add_up(kind: str) -> None:
    def check(run: Trained) -> None:
        spotlight = run.memory.attend(run.model, run.inputs[:2])
        assert_close(spotlight["fc"].output(), run.model(run.inputs[:2]).detach())
        for layer in run.memory.layers:
            asked = spotlight[layer].contribution(1)
            total = torch.from_numpy(asked.total()["total"].astype(np.float64))
            assert_close(asked.initial() + total, asked.output())

    for_each(kind, check)


@pytest.mark.parametrize("optimizer_name", ["SGD", "Adam"])
def test_a_gru_classifier_is_recorded_whole_and_goes_back_in_time(tmp_path: Path, optimizer_name: str) -> None:
    torch.manual_seed(0)
    model = dualform.unfuse(Classifier("GRU", num_layers=2))
    optimizer: Any = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.05)
    states = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    with record(model, optimizer, tmp_path / "run") as recorder:
        assert recorder.layers == ["rnn.l0.ih", "rnn.l0.hh", "rnn.l1.ih", "rnn.l1.hh", "fc"]
        assert str(recorder.coverage).startswith("100% of")
        for _ in range(6):
            inputs, labels = torch.randn(5, TIME, WIDTH, dtype=torch.float64), torch.randint(CLASSES, (5,))
            recorder.tag(label=labels, position=torch.arange(TIME).expand(5, TIME))
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            states.append({name: p.detach().clone() for name, p in model.named_parameters()})
    memory = assert_exact(tmp_path / "run", model, 6)
    for layer in memory.layers:
        for name, weight in memory.until(4).weights(layer).items():
            assert_close(weight, states[4][name])
    assert memory.slots("rnn.l1.hh") == 6 * 5 * TIME


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_asked_with_an_unfused_model_only(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = Classifier(kind)
    plain = deepcopy(model)
    optimizer = sgd(dualform.unfuse(model))
    inputs = torch.randn(4, TIME, WIDTH, dtype=torch.float64)
    with record(model, optimizer, tmp_path / "run"):
        model(inputs).square().sum().backward()
        optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 1)
    assert sorted(memory.layers) == sorted(["fc", *(f"rnn.{name}".rstrip(".") for name in model.rnn.maps())])
    with pytest.raises(QueryError, match=f"recorded from a dualform.nn.{kind}: pass dualform.unfuse"):
        memory.attend(plain, inputs)
    recorder = record(plain, sgd(plain), tmp_path / "plain")
    assert "dualform.unfuse" in recorder.skipped["rnn"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_a_recurrent_module_itself(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = getattr(dualform.nn, kind)(WIDTH, HIDDEN).double()
    optimizer = sgd(model)
    inputs = torch.randn(4, WIDTH, dtype=torch.float64)
    with record(model, optimizer, tmp_path / "run"):
        output = model(inputs)
        (output[0] if isinstance(output, tuple) else output).square().sum().backward()
        optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 1)
    assert memory.layers == [name or kind.lower() for name in model.maps()]
    assert all(len(memory.attend(model, inputs)[layer].queries) == 4 for layer in memory.layers)
