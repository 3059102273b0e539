"""Compare the gradients of a layer with what went through the layer, by random vectors r: Freivalds' check.

    (grad r)^T  ==  sum over passes of  f_p (X_p r)^T E_p

Both sides cost as much as reading their matrices once. It is the map itself, applied to r: apply(grad, r) has to be
sum_t pair(x_t, r) e_t.

A tied parameter is seen through one set of vectors, those of the first layer that uses it. What went through the other
layers is seen through the same ones; where a map is the parameter transposed and that of the first layer is not, or the
other way round, from the other side: the sum over slots of x_t (e_t . r).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from types import MappingProxyType

import torch
from torch import Tensor

from dualform.kinds.base import Kind, ModuleCall
from dualform.kinds.keys import Keys
from dualform.store.schema import Layer, Parameter

_EQUATIONS = 64  # at least that many numbers are compared per weight: more than there are factors


@dataclass(frozen=True, eq=False)
class ParameterProbe:
    """The vectors that a parameter is seen through, as the map of the first layer that uses it."""

    vectors: Tensor  # (vectors, width) of that map
    numbers: int  # that are seen through each: its d_out
    transposed: bool  # whether the map is the parameter transposed


class Probe:
    """The random vectors of one layer, drawn once a run from a generator of their own.

    Args:
        kind: The layer's kind.
        layer: The layer.
        generator: What to draw vectors with.
        known: The vectors of parameters that layers before this one use, too: they look at the gradients of these.
    """

    def __init__(
        self,
        kind: Kind,
        layer: Layer,
        generator: torch.Generator,
        known: Mapping[Parameter, ParameterProbe] = MappingProxyType({}),
    ) -> None:
        self.layer, self._kind = layer, kind
        # More vectors than key entries would say nothing new: every number compared is one more equation.
        widest = max(use.width for use in layer.attended)
        probes = max(min(ceil(_EQUATIONS / layer.d_out), widest), 1)
        self.parameters: dict[Parameter, ParameterProbe] = {}
        for use in layer.trained:
            if use.parameter not in known:
                attended = use.columns is not None
                vectors = torch.randn(probes, use.width, generator=generator) if attended else torch.ones(1, 1)
                self.parameters[use.parameter] = ParameterProbe(vectors, layer.d_out, kind.transposed(use))
            else:
                self.parameters[use.parameter] = known[use.parameter]
        self.owned = [use.parameter not in known for use in layer.trained]
        shapes = [(len(seen.vectors), seen.numbers) for seen in self.parameters.values()]
        ends = [sum(rows * width for rows, width in shapes[:i]) for i in range(len(shapes) + 1)]
        self.slices = [slice(start, end) for start, end in pairwise(ends)]  # of each trained use
        # rows, and numbers in each, of the uses whose gradients this layer looks at
        self.layout = tuple(shape for shape, owned in zip(shapes, self.owned, strict=True) if owned)
        self._swapped = [self.parameters[use.parameter].transposed != kind.transposed(use) for use in layer.trained]
        self._plain = layer.keys.geometry is None and all(use.groups == 1 for use in layer.trained)
        self._together = self._plain and all(self.owned)
        self._of_uses = [seen.vectors for seen in self.parameters.values()]
        self._vectors = self._joined()
        self._pairs = torch.ones(sum(rows for rows, _ in shapes), 0)  # for as many slots as there were last time
        self._fitted_to = torch.float32, torch.device("cpu")  # of gradients and values

    def of_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return (grad r)^T of each trained use, as one row of numbers; of none, where another layer looks at it."""
        if (gradients[0].dtype, gradients[0].device) != self._fitted_to:
            self._fit(gradients[0])
        dtype = self._vectors.dtype  # to ask torch for nothing is not free between the products of a training
        converted = [gradient if gradient.dtype == dtype else gradient.to(dtype) for gradient in gradients]
        return [
            (vectors @ self._kind.as_map(use, gradient).mT).view(-1) if owned else vectors.new_empty(0)
            for use, vectors, gradient, owned in zip(
                self.layer.trained, self._of_uses, converted, self.owned, strict=True
            )
        ]

    def of_units(self, use: int, units: Tensor) -> Tensor:
        """Return (grad r)^T of a trained use, given some rows of it as a map (units, width): (vectors, units)."""
        vectors = self._of_uses[use]
        return vectors @ units.to(vectors.device, vectors.dtype).mT

    def of_rows(self, keys: Tensor, values: Tensor, absolute: bool = False) -> Tensor:
        """Return (X r)^T E, or (|X| |r|)^T |E|, of one use after the other: flat. Keys are rows as they are stored."""
        if (values.dtype, values.device) != self._fitted_to:
            self._fit(values)
        dtype = self._vectors.dtype
        rows = keys.to(dtype) if keys.is_floating_point() and keys.dtype != dtype else keys
        values = values if values.dtype == dtype else values.to(dtype)
        if absolute:
            rows, values = rows.abs(), values.abs()
        if not self._together:
            return self._of_each_use(self._kind.keys(self.layer, rows), values, absolute)
        if self._pairs.shape[1] != len(rows):
            self._pairs = self._vectors.new_ones(len(self._pairs), len(rows))
        vectors = self._vectors.abs() if absolute else self._vectors
        self._kind.pair_into(vectors, rows, self._pairs[: len(vectors)])  # the rows after them stay ones
        return (self._pairs @ values).view(-1)

    def of_call(self, call: ModuleCall, keys: Tensor, values: Tensor) -> Tensor:
        """Return (X r)^T E of a call, whose stored rows are given: what of_rows returns for a row each slot."""
        if self._plain:
            return self.of_rows(keys, values)
        if (values.dtype, values.device) != self._fitted_to:
            self._fit(values)
        return self._of_each_use(self._kind.keys_of_call(self.layer, call), values.to(self._vectors.dtype))

    def _of_each_use(self, keys: Keys, values: Tensor, absolute: bool = False) -> Tensor:
        """Return the same, use by use: where keys come in groups, or a parameter is tied."""
        seen = []
        for use, vectors, swapped in zip(self.layer.trained, self._of_uses, self._swapped, strict=True):
            of_use, seen_through = keys.of(use), (vectors.abs() if absolute else vectors).mT
            by = of_use.seen_transposed if swapped else of_use.seen
            seen.append(by(values, seen_through).mT.reshape(-1))  # (numbers, vectors), as of_gradients has them
        return torch.cat(seen)

    def _joined(self) -> Tensor:
        """Return the vectors of all uses that multiply the key as rows of one matrix, nonzero where their entries are.

        One product then serves all of them. Uses with keys that are always 1 come after these: ones, in place of a
        product with the key.
        """
        if not self._together:
            return self._of_uses[0]
        attended = self._of_uses[: len(self.layer.attended)]
        joined = self._of_uses[0].new_zeros(sum(map(len, attended)), self.layer.d_in)
        first = 0
        for use, vectors in zip(self.layer.attended, attended, strict=True):
            joined[first : first + len(vectors), use.entries] = vectors
            first += len(vectors)
        return joined

    def _fit(self, like: Tensor) -> None:
        """Bring the vectors to the device of a tensor, and to its precision, but float32 at least."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._fitted_to = like.dtype, like.device
        if self._vectors.dtype != dtype or self._vectors.device != like.device:
            self._of_uses = [vectors.to(like.device, dtype) for vectors in self._of_uses]
            self._vectors = self._joined()
            self._pairs = self._vectors.new_ones(len(self._pairs), 0)
