"""See what layers have added to a parameter through a few random vectors r, without making a matrix of its size.

    sights = sights_of(layer, user, vectors)        # of the uses that a layer shares with another one, or with itself
    sights[use].of_map(matrix)                      # a map of the use, seen through the vectors: (d_out, n)
    sights[use].of_slots(keys, values).times(c)     # sum_t c_t e_t (x_t . r), likewise

Vectors belong to the map of one layer, (width, n). Another layer that uses the same parameter may have it the other way
round, as a head that is tied to an embedding: its map is then seen transposed, sum_t c_t x_t (e_t . r).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.kinds import Keys, kind_of
from dualform.store import Layer, Use

PROBES = 16


@dataclass(frozen=True, eq=False)
class SeenSlots:
    """Some slots of one use, seen through vectors."""

    _keys: Keys
    _values: Tensor  # (slots, d_out)
    _sight: "Sight"
    _signals: Tensor | None  # x_t . r of each group of outputs: (slots, groups, n); None: the map is transposed
    sizes: Tensor  # |e_t| |x_t . r|, or |x_t| |e_t . r|: (slots,)

    def times(self, coefficients: Tensor) -> Tensor:
        """Return the sum over slots, each times its coefficient: (numbers, n)."""
        if self._signals is None:
            return self._keys.seen_transposed(self._values * coefficients[:, None], self._sight.vectors)
        by_group = self._values.unflatten(1, (self._signals.shape[1], -1))
        weighted = self._signals * coefficients[:, None, None]
        return torch.einsum("sgo,sgn->gon", by_group, weighted).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class Sight:
    """How one use of a parameter is seen."""

    use: Use
    vectors: Tensor  # (width, n) of the map they belong to,
    numbers: int  # whose d_out this is
    _own: Tensor | None  # vectors of the use's own map, to measure keys by; None: both maps are the same

    def of_map(self, matrix: Tensor) -> Tensor:
        """Return a map of the use, seen through the vectors: (numbers, n)."""
        return (matrix if self._own is None else matrix.mT) @ self.vectors

    def of_slots(self, keys: Keys, values: Tensor) -> SeenSlots:
        """Return some slots, given the layer's keys and values (slots, d_out) in float64."""
        keys = keys.of(self.use)
        if self._own is not None:
            sizes = (values @ self.vectors).norm(dim=1) * keys.pair(self._own.mT).norm(dim=0)
            return SeenSlots(keys, values, self, None, sizes)
        signals = keys.pair_groups(self.vectors.mT.repeat(1, self.use.groups))  # (slots, groups, n)
        by_group = values.unflatten(1, (self.use.groups, -1)).norm(dim=2) * signals.norm(dim=2)
        return SeenSlots(keys, values, self, signals, by_group.norm(dim=1))


def draw_vectors(width: int, generator: torch.Generator) -> Tensor:
    """Return vectors r, scaled so that |W r| estimates |W|, or is |W| where a key has few entries: (width, probes)."""
    if width <= PROBES:
        return torch.eye(width, dtype=torch.float64)
    drawn: Tensor = torch.randn(width, PROBES, generator=generator, dtype=torch.float64)
    return drawn.div(PROBES**0.5)


def sights_of(layer: Layer, user: Layer, vectors: Mapping[Use, Tensor], generator: torch.Generator) -> dict[Use, Sight]:
    """Return how a layer's parameters are seen where another layer uses them, or the layer itself; by the uses of that.

    Args:
        layer: The layer that vectors belong to.
        user: One that shares parameters with it, or itself.
        vectors: Of each trained use of the layer, (width, n).
        generator: What to draw further vectors with.
    """
    sights = {}
    for own, theirs in shared_uses(layer, user):
        transposed = turned(layer, own, user, theirs)
        sizing = draw_vectors(theirs.width, generator) if transposed else None
        sights[theirs] = Sight(theirs, vectors[own], layer.d_out, sizing)
    return sights


def shared_uses(layer: Layer, user: Layer) -> list[tuple[Use, Use]]:
    """Return the uses of the trained parameters that two layers share: of the first, and of the second."""
    theirs = {use.parameter: use for use in user.trained}
    return [(use, theirs[use.parameter]) for use in layer.trained if use.parameter in theirs]


def turned(layer: Layer, use: Use, user: Layer, theirs: Use) -> bool:
    """Return whether the map of one layer's use is that of the other's transposed."""
    return kind_of(layer).transposed(use) != kind_of(user).transposed(theirs)
