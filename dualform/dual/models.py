"""Assemble models from a snapshot of a run, and parameters that were summed up from slots."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dualform.dual.state import stored_tensor
from dualform.errors import QueryError
from dualform.kinds import match_modules
from dualform.store import Run, Shard, clean_name
from dualform.store.schema import STATE_BUFFERS, STATE_PARAMETERS


def assembled(run: Run, snapshot: Shard, model: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
    """Copy a model, with these parameters, and all others and the buffers from a snapshot."""
    check_fits(run, snapshot, model)
    state = {}
    for prefix in (STATE_PARAMETERS, STATE_BUFFERS):
        for name in snapshot.snapshot_names(prefix):
            state[name.removeprefix(prefix)] = stored_tensor(snapshot, name)
    state |= {name: tensor.to(state[name].dtype) for name, tensor in parameters.items()}
    result = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in [*result.named_parameters(), *result.named_buffers()]:
            tensor.copy_(state[clean_name(name)])
    return result


def check_fits(run: Run, snapshot: Shard, model: nn.Module) -> None:
    """Raise unless a model has the recorded layers, and each of its tensors is in a snapshot, in its shape."""
    match_modules(model, run.layers)
    for prefix, tensors in (STATE_PARAMETERS, model.named_parameters()), (STATE_BUFFERS, model.named_buffers()):
        stored = {*snapshot.snapshot_names(prefix)}
        for name, tensor in ((clean_name(name), tensor) for name, tensor in tensors):
            if f"{prefix}{name}" not in stored:
                raise QueryError(f"the model has {name!r}, which the run does not know")
            shape = stored_tensor(snapshot, f"{prefix}{name}").shape
            if shape != tensor.shape:
                raise QueryError(f"the model's {name!r} has shape {tuple(tensor.shape)}, in the run {tuple(shape)}")
