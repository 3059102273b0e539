"""Know a module by trying it: is its output what its own parameters say?

    linear_by_trial(module)         # "weight" is (d_in, d_out) or (d_out, d_in), and the output x W + b or W x + b
    diagonal_by_trial(module)       # the output is w (.) n(x) + b, whatever n is

Many classes compute a linear map of a parameter of their own: Hugging Face's Conv1D, its many RMSNorms, LayerScale. No
list of names would have them all. So a module of no known kind, with one weight and perhaps a bias, is called with
numbers of our own, its parameters replaced by random ones for the moment; hooks are not, and nothing is left of it.
Whether it is used like that in training, the audit of every step shows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dualform.random_state import RANDOM

_ROWS, _SHAPE = 3, (2, 3)  # of inputs
_TOLERANCE = 1e-4  # of the size of the output


class LinearTrial(NamedTuple):
    """A module that computes a linear map."""

    weight: str
    bias: str | None
    transposed: bool  # the weight is (d_in, d_out)


class DiagonalTrial(NamedTuple):
    """A module that multiplies each channel by a number."""

    weight: str
    bias: str | None
    axis: int  # of the channels: -1, or 1


def linear_by_trial(module: nn.Module) -> LinearTrial | None:
    """Return how a module uses a weight of two dimensions; None if its output is anything but that linear map."""
    names = _own_parameters(module, 2)
    if names is None:
        return None
    weight, bias = names
    own = module._parameters[weight]
    assert own is not None
    rows, columns = own.shape
    for transposed in (True, False):
        d_in, d_out = (rows, columns) if transposed else (columns, rows)
        if bias is not None and tuple(module._parameters[bias].shape) != (d_out,):  # type: ignore[union-attr]
            continue
        changed = {name: _random(module._parameters[name]) for name in (weight, bias) if name is not None}
        inputs = _numbers(own, *_SHAPE, d_in)
        output = outputs_with(module, inputs, changed)
        expected = inputs @ (changed[weight] if transposed else changed[weight].mT)
        if bias is not None:
            expected = expected + changed[bias]
        if _close(output, expected):
            return LinearTrial(weight, bias, transposed)
    return None


def diagonal_by_trial(module: nn.Module) -> DiagonalTrial | None:
    """Return how a module uses a weight of one dimension; None if it does not multiply channels by it."""
    names = _own_parameters(module, 1)
    if names is None:
        return None
    weight, bias = names
    own = module._parameters[weight]
    assert own is not None
    size = len(own)
    if bias is not None and tuple(module._parameters[bias].shape) != (size,):  # type: ignore[union-attr]
        return None
    for axis, shape in ((-1, (*_SHAPE, size)), (1, (2, size, *_SHAPE))):
        inputs = _numbers(own, *shape)
        channels = [size if dimension == axis % len(shape) else 1 for dimension in range(len(shape))]
        changed = {name: _random(module._parameters[name]) for name in (weight, bias) if name is not None}
        key = diagonal_key(module, inputs, weight, bias)
        nothing = outputs_with(module, inputs, {name: torch.zeros_like(value) for name, value in changed.items()})
        if key is None or nothing is None or bool(nothing.any()):
            continue
        expected = key * changed[weight].view(channels)
        if bias is not None:
            expected = expected + changed[bias].view(channels)
        if _close(outputs_with(module, inputs, changed), expected):
            return DiagonalTrial(weight, bias, axis)
    return None


def diagonal_key(module: nn.Module, inputs: Tensor, weight: str, bias: str | None) -> Tensor | None:
    """Return what a module multiplies its weight with: its output for a weight of ones, and no bias."""
    own = module._parameters[weight]
    assert own is not None
    parts = {weight: torch.ones_like(own)}
    if bias is not None:
        parts[bias] = torch.zeros_like(own)
    return outputs_with(module, inputs, parts)


def outputs_with(module: nn.Module, inputs: Tensor, parameters: Mapping[str, Tensor]) -> Tensor | None:
    """Return a module's output with other parameters, without any hook; None if it does not return a tensor."""
    with _changed(module, parameters), torch.no_grad():
        try:
            output = module.forward(inputs)
        except Exception:  # it wants something else
            return None
    return output if isinstance(output, Tensor) else None


def _own_parameters(module: nn.Module, dimensions: int) -> tuple[str, str | None] | None:
    """Return the names of a module's weight and bias; None if it has other parts."""
    own = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
    weights = [name for name, parameter in own.items() if parameter.dim() == dimensions]
    usable = all(p.is_floating_point() and p.numel() and not p.is_meta for p in own.values() if _has_shape(p))
    if len(own) not in (1, 2) or not all(map(_has_shape, own.values())) or not usable or any(module.children()):
        return None
    if dimensions == 1 and len(own) == 2:
        weights = [name for name in own if "bias" not in name] if len(weights) == 2 else []
    biases = [name for name, parameter in own.items() if name not in weights and parameter.dim() == 1]
    if len(weights) != 1 or len(biases) != len(own) - 1:
        return None
    return weights[0], biases[0] if biases else None


def _has_shape(parameter: nn.Parameter) -> bool:
    return not isinstance(parameter, nn.parameter.UninitializedParameter)


@contextmanager
def _changed(module: nn.Module, parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters for a while; afterwards they, buffers, mode and random numbers are as they were."""
    before, buffers = dict(module._parameters), {name: b for name, b in module._buffers.items() if b is not None}
    copies, training = {name: buffer.clone() for name, buffer in buffers.items()}, module.training
    with RANDOM, torch.random.fork_rng(devices=[]):
        try:
            module._parameters.update({name: nn.Parameter(value, False) for name, value in parameters.items()})
            module.training = False
            yield
        finally:
            module.training = training
            module._parameters.update(before)
            for name, buffer in buffers.items():
                module._buffers[name] = buffer
                with torch.no_grad():
                    buffer.copy_(copies[name])


def _numbers(like: Tensor, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


def _random(like: Tensor | None) -> Tensor:
    assert like is not None
    return _numbers(like, *like.shape) + 0.5


def _close(output: Tensor | None, expected: Tensor) -> bool:
    if output is None or output.shape != expected.shape:
        return False
    wide: Any = torch.finfo(expected.dtype).eps
    tolerance = max(_TOLERANCE, 64 * wide) * float(expected.abs().max().double() + 1e-30)
    return bool(((output.double() - expected.double()).abs() <= tolerance).all())
