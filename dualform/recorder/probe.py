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

    They are the rows of one matrix, a group for each trained part, nonzero where the part's key columns
    are. A bias' key is not in the input, so its 1 is added instead.
    """

    def __init__(self, layer: Layer, generator: torch.Generator) -> None:
        self.layer = layer
        # More vectors than key columns would say nothing new: every number compared is one more equation.
        probes = max(min(ceil(_EQUATIONS / layer.d_out), layer.d_in), 1)
        widths = [1 if part.is_bias else probes for part in layer.trained]
        self.slices = [slice(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
        self._vectors = torch.zeros(sum(widths), layer.d_in)
        self._added = torch.zeros(sum(widths), 1)
        for part, group in zip(layer.trained, self.slices, strict=True):
            if part.columns is None:
                self._added[group] = 1.0
            else:
                shape = widths[0], part.columns[1] - part.columns[0]
                self._vectors[group, slice(*part.columns)] = torch.randn(shape, generator=generator)
        self._of_parts = self._split()
        self.shape = sum(widths), layer.d_out  # random vectors and biases; numbers seen through each

    def of_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(grad r)^T of each weight, and the gradient of each bias, each as one row of numbers."""
        self._fit(gradients[0])
        seen = []
        for r, gradient in zip(self._of_parts, gradients, strict=True):
            shown = gradient.to(self._vectors.dtype)
            if r is not None:
                shown = (r @ (shown if self.layer.one_hot else shown.mT)).view(-1)
            seen.append(shown)
        return seen

    def of_rows(self, keys: Tensor, values: Tensor, absolute: bool = False) -> Tensor:
        """(X r)^T E, or (|X| |r|)^T |E|: (rows, d_out). One-hot keys are given as (slots, 1) indices."""
        self._fit(values)
        values, r = values.to(self._vectors.dtype), self._vectors
        if absolute:
            keys, values, r = keys.abs(), values.abs(), r.abs()
        if self.layer.one_hot:
            return r[:, keys[:, 0]] @ values
        return torch.addmm(self._added, r, keys.to(r.dtype).mT) @ values

    def _split(self) -> list[Tensor | None]:
        """The vectors of each trained part by themselves; None for a bias."""
        return [
            None if part.columns is None else self._vectors[group, slice(*part.columns)]
            for part, group in zip(self.layer.trained, self.slices, strict=True)
        ]

    def _fit(self, like: Tensor) -> None:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        if self._vectors.dtype != dtype or self._vectors.device != like.device:
            self._vectors, self._added = (
                self._vectors.to(like.device, dtype),
                self._added.to(like.device, dtype),
            )
            self._of_parts = self._split()
