"""Replayed moments: however a chapter is cut, however torch steps, and where no replay can be exact."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.algebra import RULES, Step
from dualform.dual import replay
from dualform.errors import NotFinite
from dualform.kinds.keys import Vectors
from dualform.slots import Selection
from dualform.store import Run
from tests.optimizers import DECAYING, TORCHS
from tests.recorder.loops import assert_exact, network, record, step

pytestmark = pytest.mark.slow


def train(path: Path, kind: str, steps: int = 12, **options: Any) -> nn.Sequential:
    torch.manual_seed(1)
    model = network(nn.Tanh())
    optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    with record(model, optimizer, path) as recorder:
        for number in range(steps):
            step(model, optimizer)
            if number == 6:
                recorder.sync()
    return model


@pytest.mark.parametrize("kind", DECAYING)
def test_a_chapter_may_be_cut_anyhow(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of the root of a chapter's steps, made twice, and whole chapters, made once, are the same."""
    model = train(tmp_path / "run", kind, weight_decay=0.1)
    whole = {layer: dualform.load(tmp_path / "run").weights(layer) for layer in ("0", "2")}
    monkeypatch.setattr(replay, "_KEPT_BYTES", 0)
    memory = assert_exact(tmp_path / "run", model, steps=12)
    for layer, weights in whole.items():
        for name, weight in memory.weights(layer).items():
            assert_close(weight, weights[name], rtol=0, atol=0)


def test_little_of_a_chapter_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most the steps of one segment and a state for each segment: no more than twice the root of the steps."""
    train(tmp_path / "run", "Adam", steps=106)
    monkeypatch.setattr(replay, "_KEPT_BYTES", 0)
    taken: list[int] = []
    take = replay._Chapter._take

    def counted(self: Any, state: Any, number: int, gradients: Any) -> Any:
        taken.append(number)
        return take(self, state, number, gradients)

    monkeypatch.setattr(replay._Chapter, "_take", counted)
    run = Run(tmp_path / "run")
    source = replay.Replay(run, [run.layers["0"]], RULES["Adam"])
    steps = source.stream(source.chapters(Selection(106)), Selection(106))
    assert [next(steps).number for _ in range(3)] == [105, 104, 103]
    assert taken[-9:] == list(range(97, 106))  # the last segment of 99 steps, and no more, was made again
    assert [step.number for step in steps] == list(range(102, -1, -1))
    assert len(taken) <= 2 * 106  # two products a step


@pytest.mark.parametrize("kind", [kind for kind in DECAYING if not RULES[kind].reads_weight])
def test_the_certificate_does_not_step_weights_forwards(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a sum over slots: replayed weights are made only for decay to go through the gradient."""
    model = train(tmp_path / "run", kind, weight_decay=0.0)
    monkeypatch.setattr(Step, "forwards", None)
    assert_exact(tmp_path / "run", model, steps=12)


def test_a_key_that_is_not_what_it_was_shows_in_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousandth of one row is enough, though the optimiser forgets how large gradients are."""
    train(tmp_path / "run", "AdamW")
    outer = Vectors.outer

    def tampered(self: Vectors, values: Tensor) -> Tensor:
        product = outer(self, values)
        product[0] += 1e-3 * product[0].flip(0)
        return product

    monkeypatch.setattr(Vectors, "outer", tampered)
    assert not dualform.load(tmp_path / "run").verify().ok


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adagrad", "SGD"])
def test_fused_steps_differ_by_rounding_only(tmp_path: Path, kind: str) -> None:
    assert_exact(tmp_path / "run", train(tmp_path / "run", kind, fused=True), steps=12)


@pytest.mark.parametrize("kind", TORCHS)
def test_steps_of_many_parameters_at_once_differ_by_rounding_only(tmp_path: Path, kind: str) -> None:
    assert_exact(tmp_path / "run", train(tmp_path / "run", kind, foreach=True), steps=12)


def test_hyper_parameters_may_be_tensors(tmp_path: Path) -> None:
    lr, beta1, beta2 = torch.tensor([0.01, 0.9, 0.99], dtype=torch.float64)  # torch computes with them as they are
    model = train(tmp_path / "run", "Adam", lr=lr, betas=(beta1, beta2))
    assert_exact(tmp_path / "run", model, steps=12)


def sick(
    path: Path, optimizer: torch.optim.Optimizer, model: nn.Module, loss: Callable[[], Tensor], steps: int = 30
) -> Any:
    with record(model, optimizer, path, dtype="float32"):  # coarser than the training
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return dualform.load(path).verify()


def test_rows_that_cancel_are_reported(tmp_path: Path) -> None:
    """x and 3x with errors 3 and -1: the gradient is rounding, and Adam makes full steps of it."""
    model, one = nn.Linear(5, 4, bias=False).double(), torch.randn(1, 5).double()
    rows, errors = torch.cat([one, 3 * one]), torch.tensor([[0.3], [-0.1]]).double()
    adam = torch.optim.Adam(model.parameters())
    certificate = sick(tmp_path / "run", adam, model, lambda: (model(rows) * errors).sum())
    assert not certificate.ok
    assert "NOT EXACT" in certificate.headline
    note = certificate.to_dict()["layers"]["linear"]["parameters"]["weight"]["note"]
    assert note == "NOT EXACT: 100% of its gradients are only rounding, which the optimiser magnifies"
    assert note in str(certificate)


def constant(path: Path, steps: int) -> Any:
    """Centred RMSprop with gradients that do not change."""
    torch.manual_seed(0)
    model, one = nn.Linear(5, 4).double(), torch.randn(1, 5, dtype=torch.float64)
    rmsprop = torch.optim.RMSprop(model.parameters(), alpha=0.5, centered=True)
    return sick(path, rmsprop, model, lambda: model(one).sum(), steps)


def test_a_centred_second_moment_of_constant_gradients_is_reported(tmp_path: Path) -> None:
    """The mean square less the squared mean is rounding, and its root is divided by."""
    certificate = constant(tmp_path / "run", steps=50)
    assert not certificate.ok
    assert "NOT EXACT" in certificate.headline


def test_weights_that_become_nan_stop_the_recording(tmp_path: Path) -> None:
    """A little later, rounding has made the second moment negative."""
    with pytest.raises(NotFinite, match="step 5.: 'weight' has become NaN or infinite"):
        constant(tmp_path / "run", steps=60)
    certificate = dualform.load(tmp_path / "run").verify()
    assert not certificate.ok
    assert certificate.headline.startswith("NOT CERTIFIABLE: no snapshot was taken after any of 5")


def test_weights_decay_by_a_number_of_their_own_precision(tmp_path: Path) -> None:
    """1 - 1e-5 is off by 1.4e-8 in single precision, in every step the same way."""
    torch.manual_seed(0)
    model = nn.Linear(20, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    with record(model, optimizer, tmp_path / "run", dtype="float32"):
        for _ in range(500):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 20)), torch.randint(10, (8,))).backward()
            optimizer.step()
    assert dualform.load(tmp_path / "run").verify().relative_error < 5e-6  # 1.6e-5 with the double


@pytest.mark.parametrize("stored", ["float32", "float64"])
@pytest.mark.parametrize("kind", TORCHS)
def test_single_precision_is_replayed_in_single_precision(tmp_path: Path, kind: str, stored: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = getattr(torch.optim, kind)(model.parameters())
    with record(model, optimizer, tmp_path / "run", dtype=stored):
        for _ in range(100):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 20)), torch.randint(10, (8,))).backward()
            optimizer.step()
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.ok, str(certificate)
    assert certificate.relative_error < 5e-5


def test_first_steps_in_half_precision_are_within_rounding(tmp_path: Path) -> None:
    """A second moment that is a single square makes full steps of small gradients, and of their rounding."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(200, 100), nn.Tanh(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters())
    with record(model, optimizer, tmp_path / "run", dtype="float16") as recorder:
        for number in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(64, 200)), torch.randint(10, (64,))).backward()
            optimizer.step()
            if number == 7:
                recorder.sync()
    certificate = dualform.load(tmp_path / "run").verify()
    beginning = certificate.layers["0"].chapters[0]
    assert certificate.tolerance < beginning.relative_error < 0.01
    assert beginning.ok(certificate.tolerance)
    assert certificate.layers["0"].ok(certificate.tolerance)
    assert all(one.floor <= 0.011 * one.change for one in beginning.parameters.values())
