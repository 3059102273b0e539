"""Snapshots as tensors: parameters and optimiser states, each seen as the map it belongs to."""

import numpy as np
import torch
from torch import Tensor

from dualform.errors import RunError
from dualform.store import Layer, Part, Shard


def stored_tensor(shard: Shard, name: str) -> Tensor:
    """A tensor of a shard's state, in the precision it had."""
    bits = torch.from_numpy(np.array(shard[name]))
    return bits.view(torch.bfloat16) if shard.dtype(name) == "BF16" else bits


def as_map(layer: Layer, weight: Tensor) -> Tensor:
    """A weight as the map (d_out, d_in) it is, and back: an embedding's has a row for each key."""
    return weight.mT if layer.one_hot else weight


def parameter(shard: Shard, layer: Layer, part: Part) -> Tensor:
    """A parameter as it was at the end of a shard."""
    return as_map(layer, stored_tensor(shard, f"state/parameters/{part.parameter}"))


def optimizer_entry(shard: Shard, layer: Layer, part: Part, entry: str | None) -> Tensor | None:
    """An entry of the optimiser's state for a parameter, such as its momentum; None: there is none, or not yet."""
    name = f"state/optimizers/{part.optimizer}/{part.parameter}/{entry}"
    if name not in shard:
        return None
    found = stored_tensor(shard, name)
    if tuple(found.shape) != layer.shape(part) or not found.is_floating_point():
        raise RunError(
            f"{shard.path} is not a sound shard: {name} is {shard.dtype(name)} of shape {tuple(found.shape)}, "
            f"not floats of shape {layer.shape(part)}"
        )
    return as_map(layer, found)
