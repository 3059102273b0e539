"""Record modules that no other kind knows, where a trial shows what they are: linear maps, and diagonal ones."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from dualform.kinds.base import Candidate, Columns, ModuleCall
from dualform.kinds.linear import Linear
from dualform.kinds.norm import Diagonal
from dualform.kinds.trial import DiagonalTrial, LinearTrial, diagonal_by_trial, diagonal_key, linear_by_trial
from dualform.store.schema import Layer, Use


def _tried(module: nn.Module) -> bool:
    """Return whether a module is worth a trial: torch's own are known to be something else."""
    return not type(module).__module__.startswith("torch.nn.")


class TriedLinear(Linear):
    """y = W x + b, by a module of any class."""

    name = "TriedLinear"
    fallback = True
    _weight_is_transposed = False

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        trial = linear_by_trial(module) if _tried(module) else None
        if trial is not None and trial.transposed == self._weight_is_transposed:
            yield self._candidate(name, module, trial)

    def _candidate(self, name: str, module: nn.Module, trial: LinearTrial) -> Candidate:
        weight = module._parameters[trial.weight]
        assert weight is not None
        d_in, d_out = weight.shape if trial.transposed else weight.shape[::-1]
        columns: dict[str, tuple[int, int] | None] = {trial.weight: (0, d_in)}
        if trial.bias is not None:
            columns[trial.bias] = None
        return Candidate(name, self, module, d_in, d_out, columns)


class TransposedLinear(TriedLinear):
    """y = x W + b: the weight is (d_in, d_out), as in Hugging Face's Conv1D."""

    name = "TransposedLinear"
    _weight_is_transposed = True

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        return super().shape(layer, use)[::-1]

    def transposed(self, use: Use) -> bool:
        return use.columns is not None

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        return super().as_map(use, parameter) if use.columns is None else parameter.mT

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        return super().from_map(use, matrix) if use.columns is None else matrix.mT


class TriedDiagonal(Diagonal):
    """y = w (.) n(x) + b, by a module of any class: an RMSNorm of Hugging Face, a LayerScale."""

    name = "TriedDiagonal"
    fallback = True

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        trial = diagonal_by_trial(module) if _tried(module) else None
        if trial is not None:
            size = module._parameters[trial.weight].numel()  # type: ignore[union-attr]
            columns: Columns = {trial.weight: (0, size)} | ({trial.bias: None} if trial.bias else {})
            yield Candidate(name, self, module, size, size, columns, groups=size)

    def __init__(self) -> None:
        self._trials: WeakKeyDictionary[nn.Module, DiagonalTrial | None] = WeakKeyDictionary()

    def context(self, module: nn.Module, inputs: Tensor) -> DiagonalTrial | None:
        if module not in self._trials:
            self._trials[module] = diagonal_by_trial(module)
        return self._trials[module]

    def _axis(self, call: ModuleCall) -> int:
        return call.context.axis % call.inputs.dim() if call.context else call.inputs.dim() - 1

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        shape, axis = tuple(call.inputs.shape), self._axis(call)
        return *shape[:axis], *shape[axis + 1 :]

    def rows(self, call: ModuleCall) -> Tensor:
        key = diagonal_key(call.module, call.inputs.detach(), call.context.weight, call.context.bias)
        assert key is not None
        return self.by_slot(call, key).to(call.precision)

    def by_slot(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        axis = self._axis(call)
        return gradient.movedim(axis, -1).reshape(-1, gradient.shape[axis])

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        return self.rows(call).view(*self.leading(call), -1)
