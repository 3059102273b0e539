"""Second moments of a layer's keys and errors: to whiten queries by, and to find the directions that matter.

    moments = second_moments(view, ["0", "2"])["0"]
    moments.whitened(queries)                   # (A + eps tr(A) / d)^-1 q
    moments.features(512)                       # pairs of eigenvectors, those with the largest products of eigenvalues

They are measured on some of the steps only, evenly over the training: a few thousand slots tell them well enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.dual.coefficients import rule_of
from dualform.slots import Block, View
from dualform.store import Layer

EPS = 0.3  # of the mean eigenvalue, added to all: directions that keys hardly have are not magnified without end
_SAMPLED_SLOTS = 10_000
_WIDEST = 4096  # of a layer whose moments are taken: their eigenvectors take its cube


@dataclass(frozen=True)
class Moments:
    """Means over slots of x x^T, with the key 1 of a bias in it, and of e e^T."""

    keys: Tensor  # (width, width)
    errors: Tensor  # (d_out, d_out)

    def whitened(self, queries: Tensor) -> Tensor:
        """Return queries (n, width) times the inverse of the keys' moment, which is never quite singular."""
        width = len(self.keys)
        damped = self.keys + EPS * self.keys.trace() / width * torch.eye(width, dtype=self.keys.dtype)
        whitened: Tensor = torch.linalg.solve(damped, queries.mT.to(damped.dtype)).mT
        return whitened

    def features(self, count: int) -> "Features":
        """Return so many features of a slot."""
        of_errors, errors = torch.linalg.eigh(self.errors)
        of_keys, keys = torch.linalg.eigh(self.keys)
        products = torch.outer(of_errors.clamp(min=0), of_keys.clamp(min=0)).flatten()
        chosen = products.topk(min(count, len(products))).indices
        rows, columns = chosen // len(of_keys), chosen % len(of_keys)
        own_rows, row = rows.unique(return_inverse=True)
        own_columns, column = columns.unique(return_inverse=True)
        return Features(errors[:, own_rows].float(), keys[:, own_columns].float(), row, column)


@dataclass(frozen=True)
class Features:
    """Products of a projection of the error and one of the key: an orthonormal part of all there are."""

    errors: Tensor  # (d_out, r)
    keys: Tensor  # (width, s)
    row: Tensor  # (features,): which projection of the error each takes
    column: Tensor

    def of(self, keys: Tensor, errors: Tensor) -> Tensor:
        """Return the features of slots: (slots, features)."""
        product: Tensor = (errors @ self.errors)[:, self.row] * (keys @ self.keys)[:, self.column]
        return product


def second_moments(view: View, names: Sequence[str]) -> Mapping[str, Moments]:
    """Measure the moments of some layers."""
    return {name: _of_layer(view, view.run.layers[name]) for name in names}


def _of_layer(view: View, layer: Layer) -> Moments:
    rule_of(view.run, layer)  # raises where there are keys only
    slots = view.slots(layer.name)
    stride = max(1, len(slots) // _SAMPLED_SLOTS)  # of the steps that it has slots of
    width = sum(use.width for use in layer.trained)
    keys, count = torch.zeros(width, width, dtype=torch.float64), 0
    errors = torch.zeros(layer.d_out, layer.d_out, dtype=torch.float64)
    for _, chapter in view.run.chapters:
        for number, (step, passes) in enumerate(slots.passes_of_all(chapter).items()):
            for block in map(slots.block, passes) if step < view.selection.until and number % stride == 0 else ():
                values, rows = block.values.float(), key_rows(layer, block)
                errors += values.mT @ values
                keys += rows.mT @ rows
                count += len(block)
    return Moments(keys / max(count, 1), errors / max(count, 1))


def key_rows(layer: Layer, block: Block) -> Tensor:
    """Return the keys of all trained uses side by side, the 1 of a bias among them: (slots, width)."""
    parts = [block.keys.of(use).rows() for use in layer.trained]
    return torch.cat([part.float() for part in parts if part is not None], dim=1)


def is_followed(layer: Layer) -> bool:
    """Return whether a layer's slots have features: keys are rows of numbers that all its outputs see, not too many."""
    narrow = max(layer.d_out, sum(use.width for use in layer.trained)) <= _WIDEST
    return not layer.keys.index and all(use.groups == 1 for use in layer.uses) and narrow
