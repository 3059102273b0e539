"""Batches of many rows: rounding grows with the sum, and is told from gradients that are wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.errors import UnexplainedGradient

pytestmark = pytest.mark.slow

ROWS = 65_536


def train(
    path: Path,
    inputs: Tensor,
    targets: Tensor,
    reduction: str = "mean",
    bad: Callable[[nn.Linear], None] = lambda layer: None,
) -> None:
    model = nn.Sequential(nn.Linear(inputs.shape[-1], 6), nn.ReLU(), nn.Linear(6, targets.shape[-1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if reduction == "mean" else 1e-7)
    with dualform.record(model, optimizer, path, provenance=False):
        for _ in range(2):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets, reduction=reduction).backward()
            bad(model[0])  # type: ignore[arg-type]
            optimizer.step()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("shape", [(ROWS,), (4 * ROWS,), (64, 4096), (1_000_000,)], ids=str)
def test_the_rounding_of_a_long_sum_is_explained(
    tmp_path: Path, shape: tuple[int, ...], offset: float, reduction: str
) -> None:
    inputs, targets = torch.randn(*shape, 4) + offset, torch.randn(*shape, 2) + offset
    train(tmp_path / "run", inputs, targets, reduction)
    assert dualform.load(tmp_path / "run").steps == 2


def test_rows_that_are_sorted_by_their_target(tmp_path: Path) -> None:
    """What the sum is half way through, it is no more in the end."""
    targets = torch.randn(4 * ROWS, 1).sort(dim=0).values
    train(tmp_path / "run", torch.randn(4 * ROWS, 4) + 1, targets)
    assert dualform.load(tmp_path / "run").steps == 2


def scale_a_unit(layer: nn.Linear) -> None:
    assert layer.weight.grad is not None
    layer.weight.grad[0] *= 1.01


def use_elsewhere(layer: nn.Linear) -> None:
    F.linear(torch.randn(64, 4), layer.weight).square().mean().backward()


def add_noise(layer: nn.Linear) -> None:
    """A hundredth of its size that no row accounts for."""
    assert layer.weight.grad is not None
    layer.weight.grad += 0.01 * torch.randn_like(layer.weight.grad) * layer.weight.grad.abs().mean()


def clip_by_value(layer: nn.Linear) -> None:
    assert layer.weight.grad is not None
    layer.weight.grad.clamp_(max=float(layer.weight.grad.max()) * 0.98)


@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("bad", [scale_a_unit, use_elsewhere, add_noise, clip_by_value])
def test_a_wrong_gradient_of_many_rows_is_refused(tmp_path: Path, bad: Callable[..., None], offset: float) -> None:
    inputs, targets = torch.randn(ROWS, 4) + offset, torch.randn(ROWS, 2) + offset
    with pytest.raises(UnexplainedGradient, match="layer '0'"):
        train(tmp_path / "run", inputs, targets, bad=bad)
