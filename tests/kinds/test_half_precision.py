"""Gradients rounded as autocast does, against torch itself."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dualform.kinds.half_precision import call_codes, pass_spans, rounded_passes, rounding_ratios

HALF = [torch.bfloat16, torch.float16]


def calls_under_autocast(dtype: torch.dtype, calls: int) -> tuple[list[Tensor], Tensor]:
    """E^T X of each call of a layer in one pass, and the gradient that torch makes of them."""
    torch.manual_seed(calls)
    layer, products = nn.Linear(24, 16, bias=False), []
    inputs = [torch.randn(40, 24) for _ in range(calls)]
    outputs = []
    with torch.autocast("cpu", dtype):
        for rows in inputs:
            outputs.append(layer(rows))
            outputs[-1].retain_grad()
        loss = torch.stack([output.float().tanh() for output in outputs]).square().mean()
    loss.backward()
    for rows, output in zip(inputs, outputs, strict=True):
        assert output.grad is not None
        products.append(output.grad.float().mT @ rows.to(dtype).float())
    assert layer.weight.grad is not None
    return products, layer.weight.grad


@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("dtype", HALF)
def test_gradients_are_torchs_own_to_the_bit(dtype: torch.dtype, calls: int) -> None:
    products, gradient = calls_under_autocast(dtype, calls)
    ((exact, rounded),) = rounded_passes(products, call_codes([dtype] * calls))
    differing = (rounded != gradient).float().mean()
    assert differing < 0.01  # a product that is half-way between two numbers may be rounded either way
    assert (exact != gradient).float().mean() > 0.5


@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("dtype", HALF)
def test_products_times_their_ratios_add_up_to_what_was_rounded(dtype: torch.dtype, calls: int) -> None:
    products, _ = calls_under_autocast(dtype, calls)
    products = [product.double() for product in products]
    codes = call_codes([dtype] * calls)
    ratios = rounding_ratios(products, codes)
    ((_, rounded),) = rounded_passes(products, codes)
    total = sum(ratio * product for ratio, product in zip(ratios, products, strict=True))
    assert isinstance(total, Tensor)
    assert_close(total, rounded)
    off = torch.stack(ratios).sub(1).abs()
    assert off.quantile(0.99) < calls * torch.finfo(dtype).eps


def test_zeros_stay_zeros() -> None:
    products = [torch.zeros(2, 2), torch.tensor([[1.0, -1.0], [0.0, 3.0]])]
    codes = call_codes([torch.bfloat16] * 2)
    assert_close(torch.stack(rounding_ratios(products, codes)), torch.ones(2, 2, 2))
    assert_close(next(rounded_passes(products, codes))[1], products[1])


def test_calls_of_other_precisions_are_no_part_of_a_pass() -> None:
    half, other, full = torch.bfloat16, torch.float16, torch.float32
    assert call_codes([half, half, full, half, other, other]) == [1, 3, 0, 1, 2, 4]
    assert pass_spans([1, 3, 0, 1, 2, 4]) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 6)]
    assert pass_spans([]) == []
