"""Assemble models from a snapshot of a run, and parameters that were summed up from slots."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dualform.dual.state import stored_tensor
from dualform.errors import QueryError
from dualform.kinds import match_modules
from dualform.kinds.names import named_buffers, named_parameters
from dualform.recorder.snapshot import is_storable
from dualform.store import Run, Shard
from dualform.store.schema import STATE_BUFFERS, STATE_PARAMETERS


def assembled(run: Run, snapshot: Shard, model: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
    """Copy a model, with these parameters, and all others and the buffers from a snapshot."""
    match_modules(model, run.layers)
    state = {}
    for prefix in (STATE_PARAMETERS, STATE_BUFFERS):
        for name in snapshot.snapshot_names(prefix):
            state[name.removeprefix(prefix)] = stored_tensor(snapshot, name)
    state |= {name: tensor.to(state[name].dtype) for name, tensor in parameters.items()}
    result = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in [*named_parameters(result), *named_buffers(result)]:
            stored = state.get(name)
            if stored is None and not is_storable(tensor):
                continue  # no snapshot holds it: it stays the model's own
            if stored is None:
                raise QueryError(f"the model has {name!r}, which the run does not know")
            if stored.shape != tensor.shape:
                shapes = f"{tuple(tensor.shape)}, in the run {tuple(stored.shape)}"
                raise QueryError(f"the model's {name!r} has shape {shapes}")
            tensor.copy_(stored)
    return result
