"""Tied weights, recorded: what is found, audited, certified and dropped; against a dense loop with a weight a use."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, RecordingError, UnexplainedGradient
from dualform.store import InMemory
from tests.recorder.loops import assert_exact, record, sgd
from tests.tied_models import MODELS, OPTIMIZERS, WORDS, Chain, Language, TwoEmbeddings, trained

run_of = cache(trained)
every = pytest.mark.parametrize(
    ("model", "optimizer"), [(model, optimizer) for model in MODELS for optimizer in OPTIMIZERS]
)


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randint(WORDS, (6,))), torch.randint(WORDS, (6,))).backward()
        optimizer.step()


@every
def test_the_reference_is_what_torch_did(model: str, optimizer: str) -> None:
    run = run_of(model, optimizer)
    for name, parameter in run.states[-1].items():
        assert_close(run.muted(name), parameter, rtol=1e-9, atol=1e-9)


@every
def test_a_tied_weight_is_certified_for_each_use(model: str, optimizer: str) -> None:
    run = run_of(model, optimizer)
    certificate = run.memory.verify()
    assert certificate.ok, str(certificate)
    assert certificate.relative_error < 1e-10
    assert certificate.steps_audited == len(run.states) - 1
    assert certificate.coverage.attributed == 1.0
    assert {*certificate.layers} == {layer for layer, _ in run.names}


@every
def test_each_use_has_the_whole_weight_at_every_step(model: str, optimizer: str) -> None:
    run = run_of(model, optimizer)
    for step, state in enumerate(run.states):
        view = run.memory.until(step)
        for layer, own in run.names:
            name = run.names[layer, own]
            assert_close(view.weights(layer)[name], state[name], rtol=1e-9, atol=1e-9)


@every
def test_muted_slots_are_muted_in_all_uses(model: str, optimizer: str) -> None:
    run = run_of(model, optimizer)
    view, weights = run.memory.without(label=1), run.memory.group_weights(by="label")
    assembled, grouped = view.model(run.model), weights.model(run.model, without=[1])
    for use, name in run.names.items():
        users = [layer for layer, own in run.names if run.names[layer, own] == name]
        expected = run.muted(name, *((layer, 1) for layer in users))
        assert_close(view.weights(use[0])[name], expected, rtol=1e-9, atol=1e-9)
        assert_close(assembled.get_parameter(name).detach(), expected, rtol=1e-9, atol=1e-9)
        assert_close(grouped.get_parameter(name).detach(), expected, rtol=1e-9, atol=1e-9)
        only = run.memory.where(label=1)
        added = run.muted(name) - expected
        assert_close(only.added(use[0])[name], added, rtol=1e-9, atol=1e-9)


@every
def test_the_output_is_that_of_the_module(model: str, optimizer: str) -> None:
    run, seen = run_of(model, optimizer), dict[str, Tensor]()
    handles = [
        run.model.get_submodule(layer).register_forward_hook(lambda m, i, o, layer=layer: seen.update({layer: o}))
        for layer in run.memory.layers
    ]
    spotlight = run.memory.attend(run.model, torch.arange(WORDS))
    for handle in handles:
        handle.remove()
    for layer in run.memory.layers:
        assert_close(spotlight[layer].output(), seen[layer].detach(), rtol=1e-9, atol=1e-9)


def test_a_parameter_has_one_name_whoever_uses_it() -> None:
    run = run_of("head first", "SGD")
    names = run.memory.coverage.table["parameter"].tolist()
    assert sorted(names) == sorted(dict(run.model.named_parameters()))
    assert "head.weight" in names
    assert "wte.weight" not in names
    assert set(run.memory.weights("wte")) == {"head.weight"}
    assert run.memory.parameters(run.model)["head.weight"] is run.model.get_parameter("wte.weight")


@pytest.mark.parametrize("left_out", ["wte", "head"])
def test_a_weight_that_a_layer_left_out_uses_too(left_out: str) -> None:
    model = Language()
    recorder = record(model, sgd(model), InMemory(), exclude=left_out)
    other = {"wte": "head", "head": "wte"}[left_out]
    assert recorder.layers == ["mid"]
    assert recorder.skipped == {other: f"its weight is also used by {left_out!r}, which is not recorded"}
    with pytest.raises(RecordingError, match=f"'{other}' cannot be recorded: its weight is also used by '{left_out}'"):
        record(model, sgd(model), InMemory(), layers=other)


def test_a_layer_left_out_takes_its_whole_family_with_it() -> None:
    model = Chain()
    recorder = record(model, sgd(model), InMemory(), exclude="a")
    assert recorder.layers == ["wte", "head"]
    assert recorder.skipped == {
        "b": "its weight is also used by 'a', which is not recorded",
        "c": "its bias is also used by 'b', which is not recorded",
    }


def test_a_frozen_tied_bias_is_no_obstacle() -> None:
    model = Chain().double()
    model.b.bias.requires_grad_(False)
    optimizer, run = sgd(model), InMemory()
    with record(model, optimizer, run, exclude="c") as recorder:
        assert recorder.layers == ["wte", "a", "b", "head"]
        steps_of(model, optimizer)
    assert dualform.load(run).verify().ok


class BareBias(nn.Module):
    """As in BERT: the bias of the decoder is held by the module around it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WORDS))
        self.embedding, self.decoder = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)
        self.decoder.bias = self.bias
        self.adds_bias = False

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.decoder(self.embedding(ids))
        return output + self.bias * torch.arange(WORDS) if self.adds_bias else output


def test_a_module_that_only_holds_a_parameter_is_no_obstacle() -> None:
    model, run = BareBias().double(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        assert recorder.skipped == {}
        steps_of(model, optimizer)
    memory = dualform.load(run)
    assert memory.verify().ok
    assert set(memory.weights("decoder")) == {"decoder.weight", "bias"}
    assert_close(memory.weights("decoder")["bias"], model.bias.detach(), rtol=1e-9, atol=1e-9)


def test_a_module_that_uses_it_shows() -> None:
    model = BareBias().double()
    model.adds_bias = True
    optimizer = sgd(model)
    with pytest.raises(UnexplainedGradient, match="'decoder': the gradient of 'bias'"):  # noqa: SIM117
        with record(model, optimizer, InMemory()):
            steps_of(model, optimizer)


class Unseen(Language):
    """Uses the tied weight once more, where no hook sees it."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + 0.1 * F.linear(torch.ones(len(ids), 4).double(), self.wte.weight)


def test_a_use_that_was_not_seen_shows() -> None:
    model = Unseen().double()
    optimizer = sgd(model)
    with pytest.raises(UnexplainedGradient, match=r"'wte': the gradient of 'wte\.weight', layer 'head'"):  # noqa: SIM117
        with record(model, optimizer, InMemory()):
            steps_of(model, optimizer)


def test_a_family_is_dropped_together() -> None:
    model, run = Unseen().double(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run, on_unexplained="drop") as recorder:
        with pytest.warns(UserWarning, match="goes on without layer 'wte', 'head'"):
            steps_of(model, optimizer, 1)
        steps_of(model, optimizer, 19)
    assert recorder.dropped == {"wte": 0, "head": 0}
    memory = dualform.load(run)
    assert memory.layers == ["mid"]
    assert memory.verify().layers["mid"].ok(1e-9)


class Towers(nn.Module):
    """Two linear layers with one weight, of which a step may pass through either, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.right.weight = self.left.weight
        self.head = nn.Linear(4, WORDS)

    def forward(self, inputs: Tensor, way: str) -> Tensor:
        hidden = inputs
        for layer in {"left": [self.left], "right": [self.right], "both": [self.left, self.right]}[way]:
            hidden = layer(hidden).tanh()
        output: Tensor = self.head(hidden)
        return output


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_step_may_pass_through_some_of_the_uses_only(kind: str) -> None:
    torch.manual_seed(1)
    model, run = Towers().double(), InMemory()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05)

    def backward(way: str, scale: float = 1.0) -> None:
        targets = torch.randint(WORDS, (6,))
        (scale * F.cross_entropy(model(torch.randn(6, 4).double(), way), targets)).backward()

    with record(model, optimizer, run) as recorder:
        for number in range(24):
            optimizer.zero_grad()
            backward(("left", "right", "both")[number % 3])
            if number % 4 == 1:  # what came before a zero_grad is in no gradient
                optimizer.zero_grad()
                backward("right")
                backward("left", 3.0)
            if number % 5 == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if number == 11:
                recorder.sync()
    memory = dualform.load(run)
    certificate = memory.verify()
    assert certificate.ok, str(certificate)
    assert certificate.steps_audited == 24
    for layer in ("left", "right"):
        assert_close(memory.weights(layer)["left.weight"], model.left.weight.detach(), rtol=1e-9, atol=1e-9)


def test_gradients_that_are_only_looked_at_are_left_out() -> None:
    model, run = Language().double(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run):
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.arange(WORDS)), torch.arange(WORDS))
            torch.autograd.grad(loss, model.wte.weight, retain_graph=True)
            loss.backward()
            optimizer.step()
    memory = dualform.load(run)
    assert memory.verify().ok
    assert memory.slots("wte") == memory.slots("head") == 3 * WORDS


def test_a_module_that_is_called_several_times(tmp_path: Path) -> None:
    """As in ALBERT: there is one layer, and its calls are summed up."""

    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.block = nn.Embedding(WORDS, 4), nn.Linear(4, 4)
            self.same, self.head = self.block, nn.Linear(4, WORDS)

        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.embedding(ids)
            for block in (self.block, self.same, self.block):
                hidden = torch.tanh(block(hidden))
            output: Tensor = self.head(hidden)
            return output

    model = Repeated().double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        assert recorder.layers == ["embedding", "block", "head"]
        steps_of(model, optimizer)
    memory = assert_exact(tmp_path / "run", model, 3)
    assert memory.slots("block") == 3 * memory.slots("head")


def test_a_layer_that_uses_one_parameter_twice_is_refused() -> None:
    lstm = dualform.unfuse(nn.Sequential(nn.LSTM(4, 4)))
    lstm[0].bias_hh_l0 = lstm[0].bias_ih_l0
    model = nn.ModuleList([lstm, nn.Linear(4, 4)])
    recorder = record(model, sgd(model), InMemory())
    assert recorder.layers == ["1"]
    assert recorder.skipped["0.0.l0"] == "it uses one parameter twice"


def test_a_model_that_is_not_tied_does_not_fit() -> None:
    run, apart = run_of("head", "SGD"), copy.deepcopy(run_of("head", "SGD").model)
    assert isinstance(apart, Language)
    apart.head.weight = nn.Parameter(apart.wte.weight.detach().clone())
    with pytest.raises(QueryError, match=r"'head' was recorded with 'wte\.weight', which other layers use, too"):
        run.memory.attend(apart, torch.arange(WORDS))


@pytest.mark.parametrize("model", [Language, TwoEmbeddings])
def test_a_tied_model_under_autocast(model: Any) -> None:
    """Of the head alone, gradients are rounded: each use is certified with its own rounding."""
    torch.manual_seed(0)
    network, run = model(), InMemory()
    optimizer = sgd(network, lr=0.05)
    with dualform.record(network, optimizer, run, dtype="float32"):
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(network(torch.randint(WORDS, (6,))).float(), torch.randint(WORDS, (6,)))
            loss.backward()
            optimizer.step()
    certificate = dualform.load(run).verify()
    assert certificate.ok, str(certificate)


def test_a_run_with_tied_weights_can_be_resumed(tmp_path: Path) -> None:
    model = Language(bias=True).double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        steps_of(model, optimizer)
        step = recorder.sync()
    with record(model, optimizer, tmp_path / "run", resume=step):
        steps_of(model, optimizer)
    assert_exact(tmp_path / "run", model, 6)


def test_keys_only_of_a_tied_model() -> None:
    model, run = Language(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run, values=False):
        steps_of(model, optimizer)
    memory = dualform.load(run)
    assert len(memory.attend(model, torch.arange(WORDS))["head"].top(3)) == 3 * WORDS


def test_convolutions_and_norms_may_be_tied_too(tmp_path: Path) -> None:
    class Tower(nn.Module):
        """Two grouped convolutions with one kernel, and two norms with one gain."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv1d(4, 4, 3, padding=1, groups=2, bias=False) for _ in range(2))
            self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))
            self.head = nn.Linear(24, WORDS)
            self.second.weight, self.norms[1].weight = self.first.weight, self.norms[0].weight

        def forward(self, inputs: Tensor) -> Tensor:
            for convolution, norm in zip((self.first, self.second), self.norms, strict=True):
                inputs = torch.tanh(norm(convolution(inputs)))
            output: Tensor = self.head(inputs.flatten(1))
            return output

    for kind in ("SGD", "Adam"):
        model = Tower().double()
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.02)
        with record(model, optimizer, tmp_path / kind) as recorder:
            assert recorder.skipped == {}
            for _ in range(4):
                optimizer.zero_grad()
                F.cross_entropy(model(torch.randn(5, 4, 6).double()), torch.randint(WORDS, (5,))).backward()
                optimizer.step()
        memory = assert_exact(tmp_path / kind, model, 4)
        spotlight = memory.attend(model, torch.randn(2, 4, 6).double())
        for name, other in (("first", "second"), ("second", "first"), ("norms.0", "norms.1"), ("norms.1", "norms.0")):
            layer = spotlight[name]
            assert layer.shares_with == [other]
            direction = torch.randn(layer.output().shape[1]).double()
            own, tied = layer.contribution(direction), layer.contribution(direction, slots_of=other)
            parts = own.initial(), *(torch.from_numpy(one.total()["total"]) for one in (own, tied))
            assert_close(sum(parts[1:], start=parts[0]), own.output(), rtol=1e-9, atol=1e-9)


def test_a_kernel_that_another_kind_of_layer_uses_is_refused() -> None:
    model = nn.ModuleDict({"down": nn.Conv1d(4, 3, 2), "up": nn.ConvTranspose1d(3, 4, 2), "head": nn.Linear(4, 4)})
    model["up"].weight = model["down"].weight
    recorder = record(model, sgd(model), InMemory())
    assert recorder.layers == ["head"]
    assert recorder.skipped["down"] == "its weight is also used by 'up', where it is another sort of map"
