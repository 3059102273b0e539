"""Freivalds' probe: a layer's gradient, and what went through the layer, seen through random vectors r.

    (grad r)^T  ==  sum over passes of  f_p (X_p r)^T E_p

Both sides cost as much as reading their matrices once. A bias is a weight whose key is always 1.
"""

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor

from dualform.store import Layer

_EQUATIONS = 64  # at least that many numbers are compared per weight: more than there are factors


class Probe:
    """The random vectors of one layer, drawn once a run from a generator of their own.

    They are the rows of one matrix, a group for each trained weight, nonzero where the weight's key columns are.
    Biases, which come after the weights, have a row each, too: of ones, in place of what a key's product would be.
    """

    def __init__(self, layer: Layer, generator: torch.Generator) -> None:
        self.layer = layer
        # More vectors than key columns would say nothing new: every number compared is one more equation.
        probes = max(min(ceil(_EQUATIONS / layer.d_out), layer.d_in), 1)
        widths = [1 if part.is_bias else probes for part in layer.trained]
        self.slices = [slice(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
        self._vectors = torch.zeros(probes * sum(not part.is_bias for part in layer.trained), layer.d_in)
        for part, group in zip(layer.trained, self.slices, strict=True):
            if part.columns is not None:
                shape = probes, part.columns[1] - part.columns[0]
                self._vectors[group, slice(*part.columns)] = torch.randn(shape, generator=generator)
        self._of_parts = self._split()
        self.shape = sum(widths), layer.d_out  # random vectors and biases; numbers seen through each
        self._ones = torch.ones(sum(widths), 0)  # as many as there were slots last time; weights' rows are written over

    def of_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(grad r)^T of each weight, and a copy of the gradient of each bias, each as one row of numbers."""
        self._fit(gradients[0])
        seen = []
        for r, gradient in zip(self._of_parts, gradients, strict=True):
            shown = self._widened(gradient)
            if r is None:
                seen.append(shown.clone() if shown is gradient else shown)
            else:
                seen.append((r @ (shown if self.layer.one_hot else shown.mT)).view(-1))
        return seen

    def of_rows(self, keys: Tensor, values: Tensor, absolute: bool = False) -> Tensor:
        """(X r)^T E, or (|X| |r|)^T |E|: (rows, d_out). One-hot keys are given as (slots, 1) indices."""
        self._fit(values)
        values, r = self._widened(values), self._vectors
        if absolute:
            keys, values, r = keys.abs(), values.abs(), r.abs()
        if self.layer.one_hot:
            return r[:, keys[:, 0]] @ values
        if self._ones.shape[1] != len(keys):
            self._ones = r.new_ones(self.shape[0], len(keys))
        torch.mm(r, self._widened(keys).mT, out=self._ones[: len(r)])
        return self._ones @ values

    def _widened(self, tensor: Tensor) -> Tensor:
        """In the precision of the vectors. To ask torch for nothing is not free between the products of a training."""
        return tensor if tensor.dtype == self._vectors.dtype else tensor.to(self._vectors.dtype)

    def _split(self) -> list[Tensor | None]:
        """The vectors of each trained part by themselves; None for a bias."""
        return [
            None if part.columns is None else self._vectors[group, slice(*part.columns)]
            for part, group in zip(self.layer.trained, self.slices, strict=True)
        ]

    def _fit(self, like: Tensor) -> None:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        if self._vectors.dtype != dtype or self._vectors.device != like.device:
            self._vectors = self._vectors.to(like.device, dtype)
            self._ones = self._vectors.new_ones(self.shape[0], 0)
            self._of_parts = self._split()
