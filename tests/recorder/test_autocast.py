"""Trainings under autocast are certified, and wrong dual forms of them are not."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import dualform
from dualform.algebra import RULES
from dualform.store import Run
from tests.recorder.autocast import BATCH, STEPS, Setting, Transformer, train
from tests.store.hostile.forge import Forged

OPTIMIZERS, HALF = ("AdamW", "SGD"), (torch.bfloat16, torch.float16)
EVERY = [
    Setting(optimizer, dtype, storage, clip, micro_batches, calls)
    for optimizer, dtype, storage, clip, (micro_batches, calls) in product(
        OPTIMIZERS, HALF, ("float32", "float16"), (False, True), ((1, 1), (3, 1), (1, 3))
    )
]
TRANSFORMERS = [
    Setting(optimizer, dtype, "float32", clip, micro_batches, model=Transformer)
    for optimizer, dtype, clip, micro_batches in product(OPTIMIZERS, HALF, (False, True), (1, 3))
]
FEW = [Setting(optimizer, dtype, micro_batches=2, calls=2, clip=True) for optimizer in OPTIMIZERS for dtype in HALF]


@pytest.mark.slow
@pytest.mark.parametrize("setting", [*EVERY, *TRANSFORMERS], ids=str)
def test_every_training_is_certified(tmp_path: Path, setting: Setting) -> None:
    certificate = train(tmp_path / "run", setting).memory.verify()
    assert certificate.ok, str(certificate)
    assert certificate.uncertifiable is None
    assert f"rounding of {str(setting.dtype)[6:]} autocast" in certificate.headline
    if setting.model is not Transformer:  # whose key bias has no gradient but rounding
        assert certificate.relative_error < 1e-5
    layers = {name: layer.autocast for name, layer in certificate.layers.items()}
    assert layers.pop("embedding", None) is None  # it is not computed in half precision
    assert {*layers.values()} == {str(setting.dtype)[6:]}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_calls_under_an_autocast_each_are_summed_up_after_rounding(tmp_path: Path, optimizer: str, clip: bool) -> None:
    certificate = train(tmp_path / "run", Setting(optimizer, calls=3, apart=True, clip=clip)).memory.verify()
    assert certificate.ok, str(certificate)
    assert certificate.relative_error < 1e-5
    (_, shard), *_ = Run(tmp_path / "run").chapters
    codes = shard.pass_precision("0")
    assert codes is not None
    assert set(codes.tolist()) == {1}


@pytest.mark.parametrize("setting", FEW, ids=str)
def test_weights_are_those_of_the_model_after_every_step(tmp_path: Path, setting: Setting) -> None:
    trained = train(tmp_path / "run", setting)
    assert trained.memory.verify().ok
    for step, state in enumerate(trained.states):
        for layer in ("0", "2"):
            for name, weight in trained.memory.until(step).weights(layer).items():
                assert_close(weight, state[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setting", FEW, ids=str)
def test_contributions_and_the_initial_part_add_up(tmp_path: Path, setting: Setting) -> None:
    trained = train(tmp_path / "run", setting)
    queries, unit = torch.randn(3, 8), 5
    contribution = trained.memory.attend({"0": queries})["0"].contribution(torch.eye(12)[unit])
    total = torch.from_numpy(contribution.total()["total"])
    last = trained.states[-1]
    expected = F.linear(queries, last["0.weight"], last["0.bias"])[:, unit].double()
    assert_close(contribution.output(), expected, rtol=1e-4, atol=1e-5)
    assert_close(contribution.initial() + total, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", [Setting("SGD"), Setting("AdamW", clip=True)], ids=str)
def test_what_groups_have_added_is_what_muting_takes_away(tmp_path: Path, setting: Setting) -> None:
    trained = train(tmp_path / "run", setting)
    shares = trained.memory.group_weights(by="id")
    everything = trained.memory.where(id=list(range(BATCH)))
    for layer in ("0", "2"):
        for name, weight in trained.memory.weights(layer).items():
            assert_close(everything.weights(layer)[name], weight, rtol=1e-5, atol=1e-6)
            muted = trained.memory.without(id=0).weights(layer)[name]
            assert_close(weight - shares.added(layer, [0])[name].float(), muted, rtol=1e-5, atol=1e-5)


def one_value(forged: Forged) -> None:
    """One slot's value, larger by a tenth."""
    values = forged.shards[1].tensors["slots/2/values"]
    values[np.abs(values).sum(axis=1).argmax()] *= 1.1


def learning_rate(forged: Forged) -> None:
    """All learning rates, larger by a hundredth."""
    for shard in forged.shards:
        for name in shard.tensors:
            if name.startswith("ledger/"):
                shard.tensors[name][:, 1] *= 1.01


def one_pass(forged: Forged) -> None:
    """A backward pass that is not counted."""
    forged.shards[1].tensors["slots/2/factors"][:2] = 0  # it has two calls


def no_precision(forged: Forged) -> None:
    """All gradients, as if none had been rounded."""
    for shard in forged.shards:
        for name in [name for name in shard.tensors if name.endswith("/pass_precision")]:
            del shard.tensors[name]


@pytest.mark.parametrize("change", [one_value, learning_rate, one_pass, no_precision])
@pytest.mark.parametrize("setting", FEW, ids=str)
def test_a_wrong_dual_form_is_not_exact(tmp_path: Path, setting: Setting, change: Callable[[Forged], None]) -> None:
    assert RULES[setting.optimizer].columns[0] == "lr"
    assert train(tmp_path / "run", setting).memory.verify().ok
    forged = Forged.of(tmp_path / "run")
    change(forged)
    forged.write(tmp_path / "run")
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.status == "not exact"
    assert max(span.relative_error for span in certificate.layers["2"].chapters) > 2 * certificate.tolerance


def test_the_precision_of_each_call_is_stored(tmp_path: Path) -> None:
    train(tmp_path / "run", Setting(micro_batches=2, calls=3))
    (_, shard), *_ = Run(tmp_path / "run").chapters
    codes, (_, rows) = shard.pass_precision("0"), shard.passes("0")
    assert codes is not None
    assert codes.tolist()[:6] == [1, 3, 3, 1, 3, 3]
    assert rows.tolist()[:6] == [BATCH] * 6
    train(tmp_path / "half", Setting(dtype=torch.float16))
    (_, shard), *_ = Run(tmp_path / "half").chapters
    codes = shard.pass_precision("0")
    assert codes is not None
    assert set(codes.tolist()) == {2}


def test_nothing_is_stored_where_nothing_was_rounded(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path / "run"):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    (_, shard), *_ = Run(tmp_path / "run").chapters
    assert shard.pass_precision("0") is None
    assert "autocast" not in dualform.load(tmp_path / "run").verify().headline


@pytest.mark.parametrize("clip", [False, True])
def test_factors_are_known_to_float32(tmp_path: Path, clip: bool) -> None:
    """A loss scaler's are powers of two; clipping has the factor that torch took."""
    norms: list[float] = []
    original = torch.nn.utils.clip_grad_norm_

    def noted(parameters: object, most: float) -> torch.Tensor:
        norm = original(parameters, most)  # type: ignore[arg-type]
        norms.append(float(norm))
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", noted)
        train(tmp_path / "run", Setting(dtype=torch.float16, clip=clip))
    factors = np.concatenate([shard["slots/0/factors"][:, 0] for _, shard in Run(tmp_path / "run").chapters])
    scales = 2.0 ** -(8.0 + np.arange(STEPS) // 4)
    clipped = [min(1.0, 0.3 / (norm + 1e-6)) for norm in norms] if clip else [1.0] * STEPS
    np.testing.assert_allclose(factors, scales * clipped, rtol=2e-6 if clip else 0)


def tied() -> Transformer:
    model = Transformer()
    model.head.weight = model.embedding.weight
    return model


def test_an_embedding_has_the_factor_of_the_head_that_shares_its_weight(tmp_path: Path) -> None:
    """Of the two only the head's gradient is rounded, and what is fitted to their sum is off by that."""
    trained = train(tmp_path / "run", Setting(clip=True, model=tied))
    factors = {
        layer: np.concatenate([shard[f"slots/{layer}/factors"][:, 0] for _, shard in Run(tmp_path / "run").chapters])
        for layer in ("embedding", "head", "down")
    }
    np.testing.assert_array_equal(factors["embedding"], factors["down"])
    np.testing.assert_array_equal(factors["head"], factors["down"])
    assert trained.memory.verify().layers["embedding"].relative_error < 2e-5


@pytest.mark.parametrize(("optimizer", "dtype"), [("AdamW", torch.bfloat16), ("SGD", torch.bfloat16)])
def test_weights_in_half_precision_cannot_be_certified(tmp_path: Path, optimizer: str, dtype: torch.dtype) -> None:
    certificate = train(tmp_path / "run", Setting(optimizer, weights=dtype)).memory.verify()
    name = str(dtype)[6:]
    assert {layer.half_weights for layer in certificate.layers.values()} == {name}
    assert {layer.autocast for layer in certificate.layers.values()} == {None}
    assert (certificate.ok, certificate.status) == (False, "not certifiable")
    assert certificate.uncertifiable is not None
    assert f"weights are in {name}" in certificate.uncertifiable
    assert certificate.headline.startswith(f"NOT CERTIFIABLE: weights are in {name}")
    assert certificate.to_dict()["uncertifiable"] == certificate.uncertifiable
