"""Copy the state of a run: all parameters, all buffers, the optimisers' tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.store import Column, clean_name


def snapshot(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Column]:
    """Return a copy of everything, named as docs/internals/format.md says."""
    names = {id(p): clean_name(name) for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    tensors |= {f"parameters/{clean_name(name)}": p for name, p in model.named_parameters(remove_duplicate=False)}
    tensors |= {f"buffers/{clean_name(name)}": b for name, b in model.named_buffers(remove_duplicate=False)}
    for index, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            if id(parameter) not in names or not isinstance(state, dict):
                continue
            for entry, value in state.items():
                if isinstance(value, (Tensor, int, float)):
                    tensors[f"optimizers/{index}/{names[id(parameter)]}/{entry}"] = torch.as_tensor(value)
    return {name: _column(tensor) for name, tensor in tensors.items() if not tensor.is_complex()}


def _column(tensor: Tensor) -> Column:
    copy = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    if copy.dtype == torch.bfloat16:
        return Column([copy.view(torch.uint16).numpy()], dtype="bfloat16")
    return Column([np.asarray(copy)])
