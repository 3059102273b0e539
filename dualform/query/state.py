"""Snapshots as tensors: parameters and optimiser states, each seen as the map it belongs to."""

import numpy as np
import torch
from torch import Tensor

from dualform.errors import RunError
from dualform.kinds import kind_of
from dualform.store import Layer, Shard, Use
from dualform.store.schema import optimizer_tensor, state_tensor


def stored_tensor(shard: Shard, name: str) -> Tensor:
    """A tensor of a shard's state, in the precision it had."""
    bits = torch.from_numpy(np.array(shard[name]))
    return bits.view(torch.bfloat16) if shard.dtype(name) == "BF16" else bits


def parameter(shard: Shard, layer: Layer, use: Use) -> Tensor:
    """A parameter as it was at the end of a shard, as the map (d_out, width) that a layer makes of it."""
    return kind_of(layer).as_map(use, stored_tensor(shard, state_tensor(use.parameter.name)))


def optimizer_entry(shard: Shard, layer: Layer, use: Use, entry: str | None) -> Tensor | None:
    """An entry of the optimiser's state for a parameter, such as its momentum; None: there is none, or not yet."""
    name = optimizer_tensor(use.parameter.optimizer, use.parameter.name, entry)
    if name not in shard:
        return None
    found = stored_tensor(shard, name)
    if tuple(found.shape) != use.parameter.shape or not found.is_floating_point():
        raise RunError(
            f"{shard.path} is not a sound shard: {name} is {shard.dtype(name)} of shape {tuple(found.shape)}, "
            f"not floats of shape {use.parameter.shape}"
        )
    return kind_of(layer).as_map(use, found)
