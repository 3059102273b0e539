"""Snapshots as tensors: parameters, and what optimisers keep of them."""

import numpy as np
import torch
from torch import Tensor

from dualform.errors import RunError
from dualform.store import Parameter, Shard
from dualform.store.schema import optimizer_tensor, state_tensor


def stored_tensor(shard: Shard, name: str) -> Tensor:
    """A tensor of a shard's state, in the precision it had."""
    bits = torch.from_numpy(np.array(shard[name]))
    return bits.view(torch.bfloat16) if shard.dtype(name) == "BF16" else bits


def stored_parameter(shard: Shard, parameter: Parameter) -> Tensor:
    """A parameter as it was at the end of a shard."""
    return stored_tensor(shard, state_tensor(parameter.name))


def optimizer_entry(shard: Shard, parameter: Parameter, entry: str | None) -> Tensor | None:
    """An entry of the optimiser's state for a parameter, such as its momentum; None: there is none, or not yet."""
    name = optimizer_tensor(parameter.optimizer, parameter.name, entry)
    if name not in shard:
        return None
    found = stored_tensor(shard, name)
    if tuple(found.shape) != parameter.shape or not found.is_floating_point():
        raise RunError(
            f"{shard.path} is not a sound shard: {name} is {shard.dtype(name)} of shape {tuple(found.shape)}, "
            f"not floats of shape {parameter.shape}"
        )
    return found


def initial_part(
    shard: Shard, parameter: Parameter, entry: str | None, weight: Tensor | float, momentum: Tensor | float
) -> Tensor:
    """These shares of a parameter and of its momentum, which is an `entry`, at a snapshot; in float64."""
    result = weight * stored_parameter(shard, parameter).double()
    moving = optimizer_entry(shard, parameter, entry)
    return result if moving is None else result + momentum * moving.double()
