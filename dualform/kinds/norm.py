"""Record the affine part of norms: the key is the normalised input, and each output sees one entry of it.

    y = w (.) n(x) + b              key n(x), value e, so that the gradient of w is the sum of e_t (.) n(x_t)

Normalised inputs are made again on the way back, just as the norm made them.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dualform.kinds.base import Candidate, Kind, ModuleCall
from dualform.store.schema import KeyLayout, Layer, Use

_LAST = nn.LayerNorm, nn.RMSNorm  # over the last dimensions, which the weight has as well
_CHANNELS = nn.GroupNorm, _BatchNorm, _InstanceNorm  # channels are the second dimension
_OF_OTHERS = ("SyncBatchNorm",)  # whose statistics come from other processes, too


class Statistics(NamedTuple):
    """What a batch is normalised with, where it is not its own mean and variance."""

    mean: Tensor
    inverse: Tensor  # 1 / standard deviation


class Diagonal(Kind):
    """y = w (.) x + b"""

    may_repeat = False
    axis = -1  # of the channels

    def fits(self, layer: Layer) -> bool:
        first = layer.uses[0]
        return layer.d_in == layer.d_out == first.groups and layer.keys == KeyLayout(layer.d_in)

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        return use.parameter.shape if prod(use.parameter.shape) == layer.d_out else ()

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        return parameter.flatten(-len(use.parameter.shape)).unsqueeze(-1)

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        parameter: Tensor = matrix[..., 0].unflatten(-1, use.parameter.shape)
        return parameter


class Norm(Diagonal):
    """The norms of torch.nn."""

    name = "Norm"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, (*_LAST, *_CHANNELS)) and getattr(module, "weight", None) is not None:
            size = prod(cast(Any, module).weight.shape) if not _lazy(module) else 0
            columns = {"weight": (0, size), "bias": None}
            yield Candidate(name, self, module, size, size, columns, _obstacle(module), groups=max(size, 1))

    def context(self, module: nn.Module, inputs: Tensor) -> Statistics | None:
        """Return the running statistics, which a later forward pass may change; None: the batch's own are used."""
        tracked = isinstance(module, (_BatchNorm, _InstanceNorm)) and module.running_mean is not None
        if module.training or not tracked:
            return None
        mean, variance = cast(Any, module).running_mean, cast(Any, module).running_var
        return Statistics(mean.clone(), (variance + cast(Any, module).eps).rsqrt())

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        shape = tuple(call.inputs.shape)
        if isinstance(call.module, _LAST):
            return shape[: -len(call.module.normalized_shape)]
        axis = _channels(call)
        return *shape[:axis], *shape[axis + 1 :]

    def rows(self, call: ModuleCall) -> Tensor:
        normalised = _normalised(call).to(call.precision)
        return self.by_slot(call, normalised)

    def by_slot(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        if isinstance(call.module, _LAST):
            return gradient.reshape(-1, prod(call.module.normalized_shape))
        axis = _channels(call)
        return gradient.movedim(axis, -1).reshape(-1, gradient.shape[axis])

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        return self.rows(call).view(*self.leading(call), -1)


def _lazy(module: nn.Module) -> bool:
    return isinstance(module.weight, nn.parameter.UninitializedParameter)


def _obstacle(module: nn.Module) -> str | None:
    names = {base.__name__ for base in type(module).__mro__}
    if names & {*_OF_OTHERS}:
        return f"{type(module).__name__} normalises by the statistics of other processes, too"
    known = {base.forward for base in (*_LAST, nn.GroupNorm, _BatchNorm, _InstanceNorm)}
    if type(module).forward not in known:
        return f"{type(module).__name__} overrides the forward of torch's norm"
    return None


def _channels(call: ModuleCall) -> int:
    """Return which dimension of the input has the channels: the second, unless an InstanceNorm got a single example."""
    single = isinstance(call.module, _InstanceNorm) and call.inputs.dim() == call.module._get_no_batch_dim()
    return 0 if single else 1


def _normalised(call: ModuleCall) -> Tensor:
    """Return the input of a norm as its weight is multiplied with it."""
    module, inputs, statistics = call.module, call.inputs.detach(), cast("Statistics | None", call.context)
    with torch.no_grad():
        if statistics is not None:
            return _standardised(inputs, *statistics, _channels(call))
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(inputs, module.normalized_shape, eps=module.eps)
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(inputs, module.normalized_shape, eps=module.eps)
        if isinstance(module, nn.GroupNorm):
            return F.group_norm(inputs, module.num_groups, eps=module.eps)
        if isinstance(module, _InstanceNorm):
            return F.instance_norm(inputs, eps=module.eps)
        eps = cast(_BatchNorm, module).eps
        # the mean and deviation that torch keeps for its own way back; its output is less exact where inputs are offset
        _, mean, inverse = torch.native_batch_norm(inputs, None, None, None, None, True, 0.0, eps)
        return _standardised(inputs, mean, inverse, 1)


def _standardised(inputs: Tensor, mean: Tensor, inverse: Tensor, axis: int) -> Tensor:
    shape = [-1 if dimension == axis else 1 for dimension in range(inputs.dim())]
    return (inputs - mean.view(shape)) * inverse.view(shape)
