"""Account for what no layer records, as long as it is small: gradients and buffers, step by step.

A norm's gain and the running means of a BatchNorm belong to no training slot, but the model at a step is not itself
without them. The gradient of such a parameter is kept as the optimiser saw it, so that its steps can be replayed; of a
buffer, its value after each step. Smallest first, and together at most a hundredth of what the slots of a step take, or
64 kB. What is too large is in snapshots only, and coverage says so.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dualform.kinds.names import named_modules, named_parameters
from dualform.recorder.budget import MIN_BUDGET_BYTES, within_budget
from dualform.recorder.plan import RecordedOptimizer
from dualform.recorder.snapshot import as_column, is_storable
from dualform.store import Column
from dualform.store.chapter import Accounts
from dualform.store.schema import OtherParameter


class _Buffer(NamedTuple):
    """A buffer by its place: a module may put another tensor there."""

    module: nn.Module
    key: str

    @property
    def tensor(self) -> Tensor | None:
        return self.module._buffers.get(self.key)


class Account:
    """Gradients and buffers of a model that no recorded layer uses. What is kept is decided before the first step.

    Args:
        model: The model.
        others: The trainable parameters that no recorded layer uses.
        fixed: The names of those that are kept, in a run that goes on; None: whatever is small.
    """

    def __init__(self, model: nn.Module, others: Sequence[OtherParameter], fixed: Collection[str] | None) -> None:
        named = dict(named_parameters(model))
        described = [other.parameter for other in others if other.parameter.optimizer is not None]
        self._candidates = {
            parameter.name: (named[parameter.name], parameter.optimizer)
            for parameter in described
            if fixed is None or parameter.name in fixed
        }
        self._fixed = fixed is not None
        self._buffers = dict(_small_buffers(model))
        self._initial = {
            name: tensor.detach().clone() for name, b in self._buffers.items() if (tensor := b.tensor) is not None
        }
        self._chosen = False

    def choose(self, slot_bytes: int) -> None:
        """Decide what is kept. Buffers that have not changed by now are not.

        Args:
            slot_bytes: What the slots of a step take.
        """
        initial, self._initial, self._chosen = self._initial, {}, True
        changing = {name: tensor for name, tensor in initial.items() if self._has_changed(name, tensor)}
        sizes = {f"buffers/{name}": tensor.nbytes for name, tensor in changing.items()}
        if not self._fixed:
            sizes |= {f"parameters/{name}": parameter.nbytes for name, (parameter, _) in self._candidates.items()}
        kept = within_budget(sizes, slot_bytes)
        self._buffers = {name: self._buffers[name] for name in changing if f"buffers/{name}" in kept}
        if not self._fixed:
            self._candidates = {n: known for n, known in self._candidates.items() if f"parameters/{n}" in kept}

    @property
    def parameters(self) -> set[str] | None:
        """The names of the parameters that are accounted for; None: that is not decided yet."""
        return {*self._candidates} if self._chosen else None

    def _has_changed(self, name: str, initial: Tensor) -> bool:
        now = self._buffers[name].tensor
        return now is not None and now.shape == initial.shape and not torch.equal(now, initial)

    def lines(self, stepped: RecordedOptimizer) -> dict[str, tuple[float, ...]]:
        """Read the hyper-parameters of the parameters that an optimiser steps, just before it does."""
        mine = {name: parameter for name, (parameter, owner) in self._candidates.items() if owner == stepped.number}
        if not mine or stepped.rule is None:
            return {}
        groups = {id(p): group for group in stepped.optimizer.param_groups for p in group["params"]}
        state = stepped.optimizer.state
        return {
            name: stepped.rule.read(groups[id(parameter)], state.get(parameter, {}))
            for name, parameter in mine.items()
            if id(parameter) in groups
        }

    def gradients(self, stepped: RecordedOptimizer) -> dict[str, Column | None]:
        """Copy the gradients that an optimiser steps with, as they are now; None: there is none."""
        return {
            name: as_column(gradient.to_dense())
            if owner == stepped.number and (gradient := parameter.grad) is not None
            else None
            for name, (parameter, owner) in self._candidates.items()
        }

    def take(self, gradients: Mapping[str, Column | None]) -> Accounts:
        """Return what is kept of a step that was just taken, given the gradients it was taken with."""
        parameters = {name: parameter for name, (parameter, _) in self._candidates.items()}
        filled = {n: as_column(torch.zeros_like(parameters[n])) if g is None else g for n, g in gradients.items()}
        kept = ((name, buffer.tensor) for name, buffer in self._buffers.items())
        return Accounts(filled, {name: as_column(tensor) for name, tensor in kept if tensor is not None})


def _small_buffers(model: nn.Module) -> Iterator[tuple[str, _Buffer]]:
    for prefix, module in named_modules(model):
        for key, tensor in module._buffers.items():
            if tensor is not None and is_storable(tensor) and 0 < tensor.nbytes <= MIN_BUDGET_BYTES:
                yield f"{prefix}.{key}".lstrip("."), _Buffer(module, key)
