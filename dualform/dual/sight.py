"""See what layers have added to a parameter through a few random vectors r, without making a matrix of its size.

    sights = sights_of(layer, user, vectors)        # of the uses that a layer shares with another one, or with itself
    sights[use].of_map(matrix)                      # a map of the use, seen through the vectors: (d_out, n)
    sights[use].of_slots(keys, values).times(c)     # sum_t c_t e_t (x_t . r), likewise

Vectors belong to the map of one layer, (width, n). Another layer that uses the same parameter may have it the other way
round, as a head that is tied to an embedding: its map is then seen transposed, sum_t c_t x_t (e_t . r).

Products are as precise as the values that come, where all are of ordinary size: float32 is for slots that were stored
with no more bits. They are summed up in float64, some slots at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.kinds import Keys, kind_of
from dualform.store import Layer, Use

PROBES = 16
_ORDINARY = 2.0**40  # float32 may lose bits of products of numbers that are larger, or all smaller than its inverse
_PIECE_SLOTS = 64  # summed up in the precision of their values: of more, a certificate would tell


@dataclass(frozen=True, eq=False)
class SeenSlots:
    """Some slots of one use, seen through vectors."""

    _keys: Keys
    _values: Tensor  # (slots, d_out)
    _sight: "Sight"
    _signals: Tensor | None  # x_t . r of each group of outputs: (slots, groups, n); None: the map is transposed
    sizes: Tensor  # |e_t| |x_t . r|, or |x_t| |e_t . r|: (slots,)

    def times(self, coefficients: Tensor) -> Tensor:
        """Return the sum over slots, each times its coefficient in float64: (numbers, n), in float64."""
        if self._signals is None:
            return self._keys.seen_transposed(self._values * coefficients[:, None], self._sight.vectors)
        by_group = self._values.unflatten(1, (self._signals.shape[1], -1))
        largest = coefficients.abs().max()  # taken out first: it may be beyond float32
        shares = (coefficients / largest.where(largest > 0, 1.0)).to(self._signals.dtype)
        weighted = self._signals * shares[:, None, None]
        whole = len(weighted) // _PIECE_SLOTS * _PIECE_SLOTS
        pieces = (of_slots[:whole].unflatten(0, (-1, _PIECE_SLOTS)) for of_slots in (by_group, weighted))
        total = torch.einsum("psgo,psgn->pgon", *pieces).sum(dim=0, dtype=torch.float64)
        total += torch.einsum("sgo,sgn->gon", by_group[whole:], weighted[whole:])
        return total.flatten(0, 1) * largest


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
        """Return some slots, given the layer's keys and values (slots, d_out)."""
        return self._of_entries(keys.of(self.use), values)

    def _of_entries(self, keys: Keys, values: Tensor) -> SeenSlots:
        if self._own is not None:
            values = values.double()
            sizes = (values @ self.vectors).norm(dim=1) * keys.pair(self._own.mT).norm(dim=0)
            return SeenSlots(keys, values, self, None, sizes)
        vectors = self.vectors.to(values.dtype)
        signals = keys.pair_groups(vectors.mT.repeat(1, self.use.groups))  # (slots, groups, n)
        if values.dtype != torch.float64 and not (_is_ordinary(values) and _is_ordinary(signals)):
            return self._of_entries(keys, values.double())
        by_group = values.unflatten(1, (self.use.groups, -1)).norm(dim=2) * signals.norm(dim=2)
        return SeenSlots(keys, values, self, signals, by_group.norm(dim=1).double())


def _is_ordinary(numbers: Tensor) -> bool:
    """Return whether the largest is neither huge nor tiny; if it is 0, nothing can get lost."""
    largest = max(float(numbers.amax()), -float(numbers.amin()))
    return largest == 0 or 1 / _ORDINARY <= largest <= _ORDINARY


def draw_vectors(width: int, generator: torch.Generator) -> Tensor:
    """Return vectors r, scaled so that |W r| estimates |W|, or is |W| where a key has few entries: (width, probes).

    In float64, of numbers that are the same in float32.
    """
    if width <= PROBES:
        return torch.eye(width, dtype=torch.float64)
    drawn: Tensor = torch.randn(width, PROBES, generator=generator, dtype=torch.float64)
    return drawn.div(PROBES**0.5).float().double()


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
