"""Whole trainings with a layer of each kind, against a dense loop that is fed example by example, in float64.

The reference knows nothing of patches, groups or normalised inputs: it splits each weight by the label of the examples
that moved it, with gradients from autograd.
"""

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

from tests.beside_dense import CLASSES, FEW, Trained, assert_close, check_in_a_folder, train
from tests.optimizers import options

pytestmark = pytest.mark.slow

SMALL = st.integers(1, 3)
Made = tuple[nn.Module, tuple[int, ...]]  # a module, and the shape of one input


class Transposed(nn.Module):
    """y = x W + b, as Hugging Face's Conv1D."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(d_in, d_out)), nn.Parameter(torch.randn(d_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Plain(nn.Module):
    """y = W x, by a class of its own."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(d_out, d_in))

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.matrix)


class RootMeanSquare(nn.Module):
    """As the RMSNorms of Hugging Face."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(size)), 1e-3

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * (hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon))


class ChannelsFirst(nn.Module):
    """As ConvNeXt's norm of maps."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(size)), nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt((x - mean).square().mean(1, keepdim=True) + 1e-3)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Halves(nn.Module):
    """A module of two inputs, which are the halves of one."""

    def __init__(self, inner: nn.Bilinear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(*x.split([self.inner.in1_features, self.inner.in2_features], dim=-1))
        return output


class Bags(nn.Module):
    """Bags of three, made of numbers."""

    def __init__(self, inner: nn.EmbeddingBag) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner((x.abs() * 10).long() % self.inner.num_embeddings)
        return output


@st.composite
def convolution(draw: st.DrawFn) -> Made:
    dimensions, groups = draw(SMALL), draw(st.integers(1, 2))
    channels, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))

    def sizes(largest: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(1, largest)) for _ in range(dimensions))

    kernel, dilation = sizes(3), sizes(2)
    padding: Any = draw(st.sampled_from(["same", "valid", "some"]))
    stride = (1,) * dimensions if padding == "same" else sizes(2)
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    extents = tuple(draw(st.integers(5, 6)) for _ in range(dimensions))
    if padding == "some":
        padding = tuple(draw(st.integers(0, 2)) for _ in range(dimensions))
    module = getattr(nn, f"Conv{dimensions}d")(
        channels, out, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups,
        bias=draw(st.booleans()), padding_mode=mode,
    )  # fmt: skip
    return module, (channels, *extents)


@st.composite
def transposed_convolution(draw: st.DrawFn) -> Made:
    dimensions, groups = draw(SMALL), draw(st.integers(1, 2))
    channels, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = (draw(st.integers(1, n)) for n in (3, 2, 2))
    padding, more = draw(st.integers(0, 1)), draw(st.integers(0, max(stride, dilation) - 1))
    extents = tuple(draw(st.integers(3, 4)) for _ in range(dimensions))
    module = getattr(nn, f"ConvTranspose{dimensions}d")(
        channels, out, kernel, stride=stride, padding=padding, output_padding=more, groups=groups,
        bias=draw(st.booleans()), dilation=dilation,
    )  # fmt: skip
    return module, (channels, *extents)


@st.composite
def norm(draw: st.DrawFn) -> Made:
    size, extents = 2 * draw(SMALL), (3, 2)
    return draw(
        st.sampled_from(
            [
                (nn.LayerNorm(size), (3, size)),
                (nn.LayerNorm((2, size), bias=False), (3, 2, size)),
                (nn.RMSNorm(size), (3, size)),
                (nn.GroupNorm(2, size), (size, *extents)),
                (nn.InstanceNorm2d(size, affine=True), (size, *extents)),
                (nn.BatchNorm2d(size), (size, *extents)),
                (nn.BatchNorm1d(size), (size,)),
            ]
        )
    )


@st.composite
def others(draw: st.DrawFn, kind: str) -> Made:
    d_in, d_out = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    if kind == "Linear":
        return nn.Linear(d_in, d_out, bias=draw(st.booleans())), (2, d_in)
    if kind == "TransposedLinear":
        return Transposed(d_in, d_out), (2, d_in)
    if kind == "TriedLinear":
        return Plain(d_in, d_out + (d_in == d_out == 1)), (2, d_in)  # one number is its own transpose
    if kind == "TriedDiagonal":
        made = draw(st.sampled_from([RootMeanSquare, ChannelsFirst, LayerScale]))
        return made(d_in + 1), (d_in + 1, 2, 3) if made is ChannelsFirst else (2, d_in + 1)
    if kind == "Bilinear":
        return Halves(nn.Bilinear(d_in, d_out, 3, bias=draw(st.booleans()))), (2, d_in + d_out)
    assert kind == "EmbeddingBag"
    mode, padding = draw(st.sampled_from(["sum", "mean"])), draw(st.sampled_from([None, 1]))
    return Bags(nn.EmbeddingBag(d_in + 2, d_out, mode=mode, padding_idx=padding)), (3,)


CASES = {
    "Convolution": convolution(),
    "TransposedConvolution": transposed_convolution(),
    "Norm": norm(),
    **{
        kind: others(kind)
        for kind in ("Linear", "TransposedLinear", "TriedLinear", "TriedDiagonal", "Bilinear", "EmbeddingBag")
    },
}
each_kind = pytest.mark.parametrize("kind", CASES)


def trained(path: Path, made: Made, optimizer_name: str, given: dict[str, Any]) -> Trained:
    """A classifier with the module as its first part; statistics of a BatchNorm are frozen, its weight is not."""
    module, shape = made
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 2)
    inputs = torch.randn(8, *shape, dtype=torch.float64)
    flat = module.double().eval()(inputs[:1]).numel()
    model = nn.Sequential(module, nn.Tanh(), nn.Flatten(), nn.Linear(flat, CLASSES).double()).eval()
    return train(path, model, deepcopy(model), inputs, optimizer_name, given)


def for_each(kind: str, check: Callable[[Trained], None]) -> None:
    @FEW
    @given(CASES[kind], options())
    def train_and_check(made: Made, optimizer: tuple[str, dict[str, Any]]) -> None:
        check_in_a_folder(lambda path: trained(path, made, *optimizer), check)

    train_and_check()


@each_kind
def test_it_is_certified_and_every_view_is_the_dense_loops(kind: str) -> None:
    def check(run: Trained) -> None:
        memory, last = run.memory, {name: p.detach() for name, p in run.model.named_parameters()}
        assert kind in {layer["kind"] for layer in memory.summary()["layers"].values()}
        certificate = memory.verify()
        assert certificate.ok, str(certificate)
        assert memory.coverage.attributed + memory.coverage.accounted == pytest.approx(1.0)
        shares = memory.group_weights(by="label")
        for layer in memory.layers:
            for name, weight in memory.weights(layer).items():
                assert_close(weight, last[name])
            for label in range(CLASSES):
                kept = {*range(CLASSES)} - {label}
                for name, weight in memory.without(label=label).weights(layer).items():
                    assert_close(weight, run.reference.weight(name, kept))
                    assert_close(
                        shares.model(run.model, without=[label]).get_parameter(name).detach(),
                        run.reference.weight(name, kept),
                    )

    for_each(kind, check)


@each_kind
def test_its_output_is_the_modules_and_contributions_add_up(kind: str) -> None:
    def check(run: Trained) -> None:
        layer = run.memory.layers[0]
        spotlight = run.memory.attend(run.model, run.inputs[:2])
        last = spotlight[run.memory.layers[-1]]
        assert_close(last.output(), run.model(run.inputs[:2]).detach())
        for asked in (last.contribution(1), spotlight[layer].contribution(1)):
            total = torch.from_numpy(asked.total()["total"].astype(np.float64))
            assert_close(asked.initial() + total, asked.output())
        module = run.model.get_submodule("0")
        output = module(run.inputs[:2]).detach()
        last_channels = isinstance(module, nn.LayerNorm) or kind not in ("Convolution", "Norm", "TriedDiagonal")
        if not last_channels and output.dim() > 3 - (kind == "Convolution"):
            output = output.movedim(1, -1)
        if kind not in ("TransposedConvolution", "EmbeddingBag"):  # whose outputs are sums over slots
            assert_close(spotlight[layer].output().reshape(-1), output.reshape(-1))

    for_each(kind, check)
