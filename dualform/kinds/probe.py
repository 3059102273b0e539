"""Compare a layer's gradient with what went through the layer, by random vectors r: Freivalds' check.

    (grad r)^T  ==  sum over passes of  f_p (X_p r)^T E_p

Both sides cost as much as reading their matrices once. It is the map itself, applied to r: apply(grad, r) has to be
sum_t pair(x_t, r) e_t.
"""

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor

from dualform.kinds.base import Kind, ModuleCall
from dualform.kinds.keys import Keys
from dualform.store.schema import Layer

_EQUATIONS = 64  # at least that many numbers are compared per weight: more than there are factors


class Probe:
    """The random vectors of one layer, drawn once a run from a generator of their own.

    They are the rows of one matrix, a group for each use that multiplies the key, nonzero where its entries are. Uses
    with keys that are always 1 come after these and have a row each: of ones, in place of a product with the key.
    """

    def __init__(self, kind: Kind, layer: Layer, generator: torch.Generator) -> None:
        self.layer, self._kind = layer, kind
        # More vectors than key entries would say nothing new: every number compared is one more equation.
        widest = max(use.width for use in layer.attended)
        probes = max(min(ceil(_EQUATIONS / layer.d_out), widest), 1)
        # one product of rows with all vectors will do, unless groups of outputs see entries of their own
        self._by_rows = layer.keys.geometry is None and all(use.groups == 1 for use in layer.uses)
        widths = [probes if use in layer.attended else 1 for use in layer.trained]
        self.slices = [slice(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
        self.shape = sum(widths), layer.d_out  # vectors; numbers seen through each
        self._vectors = torch.zeros(probes * len(layer.attended), layer.d_in)
        for use, group in zip(layer.attended, self.slices, strict=False):
            drawn = torch.randn(probes, use.width, generator=generator)
            self._vectors[group, use.entries] = drawn.repeat(1, use.groups)
        self._of_uses = self._split()
        self._pairs = torch.ones(self.shape[0], 0)  # for as many slots as there were last time
        self._fitted_to = self._vectors.dtype, self._vectors.device  # of gradients and values

    def of_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return (grad r)^T of each trained use, as one row of numbers."""
        if (gradients[0].dtype, gradients[0].device) != self._fitted_to:
            self._fit(gradients[0])
        dtype = self._vectors.dtype  # to ask torch for nothing is not free between the products of a training
        converted = [gradient if gradient.dtype == dtype else gradient.to(dtype) for gradient in gradients]
        return [
            (vectors @ self._kind.as_map(use, gradient).mT).view(-1)
            for use, vectors, gradient in zip(self.layer.trained, self._of_uses, converted, strict=True)
        ]

    def of_units(self, use: int, units: Tensor) -> Tensor:
        """Return (grad r)^T of a trained use, given some rows of it as a map (units, width): (vectors, units)."""
        vectors = self._of_uses[use]
        return vectors @ units.to(vectors.device, vectors.dtype).mT

    def of_rows(self, keys: Tensor, values: Tensor, absolute: bool = False) -> Tensor:
        """Return (X r)^T E, or (|X| |r|)^T |E|: (vectors, d_out). Keys are rows as they are stored."""
        if (values.dtype, values.device) != self._fitted_to:
            self._fit(values)
        vectors, dtype = self._vectors, self._vectors.dtype
        if absolute:
            keys, values, vectors = keys.abs(), values.abs(), vectors.abs()
        if not self._by_rows:
            return self._of_keys(self._kind.keys(self.layer, keys.to(dtype)), values.to(dtype), absolute)
        if self._pairs.shape[1] != len(keys):
            self._pairs = vectors.new_ones(self.shape[0], len(keys))
        rows = keys.to(dtype) if keys.is_floating_point() and keys.dtype != dtype else keys
        self._kind.pair_into(vectors, rows, self._pairs[: len(vectors)])  # the rows after them stay ones
        return self._pairs @ (values if values.dtype == dtype else values.to(dtype))

    def of_call(self, call: ModuleCall, keys: Tensor, values: Tensor) -> Tensor:
        """Return (X r)^T E of a call, whose stored rows are given."""
        if self._by_rows:
            return self.of_rows(keys, values)
        if (values.dtype, values.device) != self._fitted_to:
            self._fit(values)
        return self._of_keys(self._kind.keys_of_call(self.layer, call), values.to(self._vectors.dtype))

    def _of_keys(self, keys: Keys, values: Tensor, absolute: bool = False) -> Tensor:
        vectors = [vectors.abs() if absolute else vectors for vectors in self._of_uses]
        seen = zip(self.layer.trained, vectors, strict=True)
        return torch.cat([keys.of(use).seen(values, vectors.mT).mT for use, vectors in seen])

    def _split(self) -> list[Tensor]:
        """Return the vectors of each trained use by themselves; for a key that is always 1, that 1."""
        one = self._vectors.new_ones(1, 1)
        groups = dict(zip(self.layer.attended, self.slices, strict=False))
        return [
            self._vectors[groups[use], use.entries][:, : use.width] if use in groups else one
            for use in self.layer.trained
        ]

    def _fit(self, like: Tensor) -> None:
        """Bring the vectors to the device of a tensor, and to its precision, but float32 at least."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._fitted_to = like.dtype, like.device
        if self._vectors.dtype != dtype or self._vectors.device != like.device:
            self._vectors = self._vectors.to(like.device, dtype)
            self._pairs = self._vectors.new_ones(self.shape[0], 0)
            self._of_uses = self._split()
