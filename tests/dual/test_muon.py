"""Muon: matrices multiply gradients, and torch's bfloat16 adds a remainder that is due to no slot."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, RunError
from dualform.kinds.keys import Vectors


class Translator(nn.Module):
    """nn.Transformer between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 7)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = self.transformer(self.embedding(source), self.embedding(target))
        outputs: Tensor = self.head(hidden)
        return outputs


def two_optimizers(model: nn.Module, hidden: str) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of a part of a model, AdamW for everything else."""
    matrices = [p for name, p in model.named_parameters() if name.startswith(hidden) and p.dim() == 2]
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.01)]


def step(optimizers: list[torch.optim.Optimizer], loss: Tensor) -> None:
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_transformer_by_muon_and_adamw_is_recorded_whole_and_certified(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(0)
    model = dualform.unfuse(Translator()).to(getattr(torch, dtype))
    optimizers, states = two_optimizers(model, "transformer"), []
    with dualform.record(model, optimizers, tmp_path / "run", dtype=dtype) as recorder:
        for number in range(4):
            tokens = torch.randint(7, (4, 5))
            recorder.tag(id=torch.arange(4) + 4 * number)
            states.append(copy.deepcopy(model.state_dict()))
            step(optimizers, F.cross_entropy(model(tokens, tokens[:, :3]).flatten(0, 1), tokens[:, 1:4].flatten()))
            if number == 1:
                recorder.sync()
    memory = dualform.load(tmp_path / "run")
    certificate = memory.verify()
    # Newton and Schulz magnify small singular values, and what rounding has left of them, up to 485 times
    assert certificate.relative_error < (1e-9 if dtype == "float64" else 2e-4), str(certificate)
    assert 1e-3 < max(layer.rounding for layer in certificate.layers.values()) < 0.2  # more than in a larger network
    assert "; with the optimiser's own rounding, " in certificate.headline
    near = 1e-9 if dtype == "float64" else 1e-4
    assert memory.coverage.snapshots_only == 0
    biases = [name for name in dict(model.named_parameters()) if name.startswith("transformer") and "bias" in name]
    assert {*memory.coverage.parameters("accounted for")} == {name for name in biases if "norm" not in name}
    for number, state in enumerate(states):  # each of the optimisers takes a step of the run
        assert_close(memory.until(2 * number).model(model).state_dict(), state, rtol=near, atol=near)
    assert_close(memory.until(8).model(model).state_dict(), model.state_dict(), rtol=near, atol=near)


class Matrices(nn.Module):
    """Tall and wide weights, one that a head shares with an embedding, projections in blocks, and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.few = nn.Embedding(7, 4), nn.Embedding(2, 4)
        self.attention = dualform.nn.MultiheadAttention(4, 2, bias=False, kdim=4, vdim=3, batch_first=True)
        self.narrow = nn.Linear(4, 3, bias=False)
        self.shift = nn.Parameter(torch.randn(3, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.tokens(tokens) + self.few(tokens % 2)
        seen, _ = self.attention(embedded, embedded, self.narrow(embedded) @ (self.shift @ self.shift.T))
        outputs: Tensor = self.head(seen + embedded)
        return outputs


def matrices(path: Path) -> tuple[Matrices, Tensor]:
    torch.manual_seed(1)
    model = Matrices().double()
    muon = torch.optim.Muon(model.parameters(), lr=0.05)
    with dualform.record(model, muon, path, dtype="float64") as recorder:
        for _ in range(5):
            tokens = torch.randint(7, (6, 5))
            recorder.tag(id=torch.arange(6), label=tokens[:, 0] % 3)
            step([muon], F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten()))
    return model, tokens


def test_contributions_are_what_views_say_whichever_way_a_matrix_multiplies(tmp_path: Path) -> None:
    """Of weights that are wide or tall, transposed, a block of a map, or shared."""
    model, tokens = matrices(tmp_path / "run")
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.coverage.parameters("accounted for") == ["shift"]
    spotlight = memory.attend(model, tokens[:1])
    for name in memory.layers:
        layer = spotlight[name]
        queries = {name: layer.queries}
        directions = torch.randn(len(layer.queries), layer.output().shape[1], dtype=torch.float64)
        for label in range(3):
            view = memory.where(label=label).attend(queries)[name]
            said = ((view.output() - view.initial()) * directions).sum(dim=1)
            others = ["head", "tokens"] if name in ("head", "tokens") else [name]
            found = torch.zeros_like(said)
            for user in others:
                totals = layer.contribution(directions, slots_of=user).total(by="label")
                for row in totals.rows():
                    found[row["query"]] += row["total"] if row["label"] == label else 0.0
            assert_close(found, said, rtol=1e-9, atol=1e-9)


def test_group_weights_are_what_views_say(tmp_path: Path) -> None:
    model, _ = matrices(tmp_path / "run")
    memory = dualform.load(tmp_path / "run")
    weights = memory.group_weights(by="label")
    muted = weights.model(model, without=[weights.groups["label"].tolist().index(2)])
    assert_close(muted.state_dict(), memory.without(label=2).model(model).state_dict(), rtol=1e-9, atol=1e-9)


def test_there_is_no_attention_by_a_single_coefficient(tmp_path: Path) -> None:
    model, tokens = matrices(tmp_path / "run")
    layer = dualform.load(tmp_path / "run").attend(model, tokens[:1])["narrow"]
    with pytest.raises(QueryError, match="mixes output units by a matrix: attention cannot take effect"):
        layer.effective(0).top(3)
    with pytest.raises(QueryError, match=r"Ask for layer.contribution"):
        layer.collect(dualform.Total(by="label", valued=True))


def test_remainders_do_not_make_up_for_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of the gradients that were there, so that a key that is not what it was shows in the certificate."""
    matrices(tmp_path / "run")
    outer = Vectors.outer

    def tampered(self: Vectors, values: Tensor) -> Tensor:
        product = outer(self, values)
        product[0] += 1e-3 * product[0].flip(0)
        return product

    monkeypatch.setattr(Vectors, "outer", tampered)
    assert not dualform.load(tmp_path / "run").verify().ok


def test_without_its_remainder_a_step_is_a_hundredth_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrices(tmp_path / "exact")
    share = max(layer.rounding for layer in dualform.load(tmp_path / "exact").verify().layers.values())
    assert 1e-3 < share < 0.1
    rule = dualform.algebra.RULES["Muon"]
    monkeypatch.setitem(vars(rule), "remainder", lambda line, g, moments: torch.zeros_like(g))
    matrices(tmp_path / "run")
    error = dualform.load(tmp_path / "run").verify().relative_error
    assert share / 2 < error < 2 * share


def test_a_run_without_remainders_is_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ledger says was stepped has one."""
    with monkeypatch.context() as patch:
        patch.setitem(vars(dualform.algebra.RULES["Muon"]), "remainder", None)
        matrices(tmp_path / "run")
    with pytest.raises(RunError, match=r"corrupt shard: remainders/.*weight has 0 rows, not 5"):
        dualform.load(tmp_path / "run").verify()


def test_rounding_by_autocast_and_by_muon_go_together(tmp_path: Path) -> None:
    """Slots are multiplied by what autocast's rounding multiplied their pass by, and then by the matrix."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Linear(9, 3, bias=False))
    muon = torch.optim.Muon(model.parameters(), lr=0.02)
    with dualform.record(model, muon, tmp_path / "run", dtype="float32") as recorder:
        for _ in range(10):
            recorder.tag(label=torch.arange(16) % 2)
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,)))
            step([muon], loss)
    memory = dualform.load(tmp_path / "run")
    certificate = memory.verify()
    assert certificate.ok, str(certificate)
    assert "with the rounding of bfloat16 autocast; with the optimiser's own rounding, " in certificate.headline
    spotlight = memory.attend(model, torch.randn(2, 6))
    for name in memory.layers:
        direction = torch.randn(2, spotlight[name].output().shape[1])
        totals = spotlight[name].contribution(direction).total(by="label")
        view = memory.where(label=1).attend({name: spotlight[name].queries})[name]
        said = ((view.output() - view.initial()) * direction).sum(dim=1)
        found = torch.from_numpy(totals.where(label=1)["total"]).to(said.dtype)
        assert_close(found, said, rtol=1e-4, atol=1e-4)
