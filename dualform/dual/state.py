"""Read snapshots as tensors: parameters, and what optimisers keep of them."""

import numpy as np
import torch
from torch import Tensor, nn

from dualform.algebra import Rule
from dualform.errors import RunError
from dualform.kinds.names import named_parameters
from dualform.store import Parameter, Run, Shard
from dualform.store.schema import optimizer_tensor, state_tensor


def stored_tensor(shard: Shard, name: str) -> Tensor:
    """Return a tensor of a shard's state, in the precision it had."""
    return stored_rows(shard.snapshot_holder(name), name)


def stored_rows(shard: Shard, name: str) -> Tensor:
    """Return a tensor of a shard that has a row for each of its steps, in the precision it had."""
    tensor = torch.from_numpy(np.array(shard[name]))
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor  # numpy does not know bfloat16


def stored_parameter(shard: Shard, parameter: Parameter) -> Tensor:
    """Return a parameter as it was at the end of a shard."""
    return stored_tensor(shard, state_tensor(parameter.name))


def optimizer_entry(shard: Shard, parameter: Parameter, entry: str | None, joint: bool = False) -> Tensor | None:
    """Return an entry of the optimiser's state for a parameter, such as its momentum; None: it has none, or not yet.

    Args:
        shard: The snapshot.
        parameter: The parameter, whose shape the entry has to have;
        entry: what the optimiser calls it;
        joint: and whether it may be a mean over some dimensions of the parameter.
    """
    name = optimizer_tensor(parameter.optimizer, parameter.name, entry)
    if name not in shard:
        return None
    stored = stored_tensor(shard, name)
    fits = tuple(stored.shape) == parameter.shape or (joint and _is_mean_of(tuple(stored.shape), parameter.shape))
    if not fits or not stored.is_floating_point():
        raise RunError(
            f"{shard.path} is a corrupt shard: {name} is {shard.dtype(name)} of shape {tuple(stored.shape)}, "
            f"not floats of shape {parameter.shape}"
        )
    return stored


def _is_mean_of(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(shape) == len(whole) and all(own in (1, all_) for own, all_ in zip(shape, whole, strict=True))


def initial_part(
    shard: Shard, parameter: Parameter, rule: Rule, weight: Tensor | float, momentum: Tensor | float
) -> Tensor:
    """Return `weight` times a parameter plus `momentum` times its momentum, both of a snapshot; in float64."""
    result = weight * stored_parameter(shard, parameter).double()
    stored_momentum = optimizer_entry(shard, parameter, rule.momentum)
    return result if stored_momentum is None else result + rule.times(momentum, stored_momentum.double())


def difference(run: Run, model: nn.Module) -> str | None:
    """Say which of a model's parameters is not as the run left it; None: they all are."""
    parameters = dict(named_parameters(model, remove_duplicate=False))
    for name in (parameter.name for parameter in run.manifest.parameters):
        if not torch.equal(parameters[name].detach().cpu(), stored_tensor(run.final, state_tensor(name))):
            return f"the model's {name!r} is not the one this run ends with (step {run.steps})"
    return None
