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
    check_fits(run, snapshot, model)
    state = {}
    for prefix in (STATE_PARAMETERS, STATE_BUFFERS):
        for name in snapshot.snapshot_names(prefix):
            state[name.removeprefix(prefix)] = stored_tensor(snapshot, name)
    state |= {name: tensor.to(state[name].dtype) for name, tensor in parameters.items()}
    result = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in [*named_parameters(result), *named_buffers(result)]:
            if name in state:  # what no snapshot can hold stays the model's own
                tensor.copy_(state[name])
    return result


def check_fits(run: Run, snapshot: Shard, model: nn.Module) -> None:
    """Raise unless a model has the recorded layers, and each of its tensors is in a snapshot, in its shape."""
    match_modules(model, run.layers)
    for prefix, tensors in (STATE_PARAMETERS, named_parameters(model)), (STATE_BUFFERS, named_buffers(model)):
        stored = {*snapshot.snapshot_names(prefix)}
        for name, tensor in tensors:
            if f"{prefix}{name}" not in stored:
                if not is_storable(tensor) and not tensor.is_meta:  # a model on the meta device is to be made
                    continue
                raise QueryError(f"the model has {name!r}, which the run does not know")
            shape = stored_tensor(snapshot, f"{prefix}{name}").shape
            if shape != tensor.shape:
                raise QueryError(f"the model's {name!r} has shape {tuple(tensor.shape)}, in the run {tuple(shape)}")
