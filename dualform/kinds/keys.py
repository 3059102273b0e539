"""Multiply the keys of some slots: the few products that all answers are made of.

    keys = kind.keys(layer, rows)                   # of stored rows (slots, key width)
    keys.of(use).pair(queries)                      # (queries, slots): x_t . q
    keys.of(use).outer(values)                      # (d_out, width): the sum of e_t x_t^T

Each is linear in the key. Most keys are vectors of numbers. An embedding's are one-hot: only the place of the 1 is
stored, and a product with such a key is a look-up. What is added to every output has a key that is always 1.

Outputs may come in groups, each of which sees entries of its own: those of a grouped convolution, or of a norm, where
every output is a group. Then a key is (groups, width), a map still (d_out, width), and a key has as many attention
weights with a query as there are groups; what is called its attention weight is their sum.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.store.schema import Use

_MAX_INDICATED = 256  # groups, beyond which scattered adding is quicker than a product with their indicators
_NARROW = 16  # columns, up to which it is quicker for any number of groups


class Keys(ABC):
    """Keys (slots, width), however they are kept."""

    nonnegative = True

    @abstractmethod
    def __len__(self) -> int: ...

    def of(self, use: Use) -> "Keys":
        """Return the keys as one use of the layer sees them: some of their entries, in groups, or 1."""
        if use.columns is None:
            return Ones(len(self))
        return self._entries(*use.columns) if use.groups == 1 else self._grouped(*use.columns, use.groups)

    @abstractmethod
    def _entries(self, start: int, stop: int) -> "Keys": ...

    def _grouped(self, start: int, stop: int, groups: int) -> "Keys":
        raise TypeError(f"{type(self).__name__} keys come in no groups")

    def rows(self) -> Tensor | None:
        """Return the keys as rows of numbers, (slots, width); None where they would take too much."""
        return None

    @abstractmethod
    def pair(self, queries: Tensor) -> Tensor:
        """Return attention weights (queries, slots), in the precision of the queries (queries, width)."""

    def pair_groups(self, queries: Tensor) -> Tensor:
        """Return the attention weights of each group of outputs: (slots, groups, queries)."""
        return self.pair(queries).mT[:, None]

    def seen(self, values: Tensor, vectors: Tensor) -> Tensor:
        """Return `outer(values)` times vectors (width, n), without making it: (d_out, n)."""
        return values.mT @ self.pair(vectors.mT).mT

    @abstractmethod
    def seen_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        """Return `outer(values)`, transposed, times vectors (d_out, n), without making it: (width, n)."""

    def contributions(self, values: Tensor, queries: Tensor, directions: Tensor) -> Tensor:
        """Return g^T (e x^T) q of each slot, for queries and directions g (n, d_out): (slots, n)."""
        return (values @ directions.mT) * self.pair(queries).mT

    @abstractmethod
    def outer(self, values: Tensor) -> Tensor:
        """Return the sum over slots of value x key^T, for values (slots, d_out): (d_out, width)."""

    @abstractmethod
    def outers(self, values: Tensor) -> Tensor:
        """Return value x key^T of each slot by itself: (slots, d_out, width)."""

    @abstractmethod
    def outer_squares(self, values: Tensor) -> Tensor:
        """Return the sum of squares of what `outer` sums up: (d_out, width)."""

    @abstractmethod
    def effective(self, coefficient: Tensor, query: Tensor) -> Tensor:
        """Return sum_j R[i, j] x[j] q[j], given a coefficient R (d_out, width) and a query (width,): (slots, d_out)."""

    @abstractmethod
    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        """Add each key, times its factor, to the sum of its group: (groups, width)."""


@dataclass(frozen=True, eq=False)
class Vectors(Keys):
    """Rows of numbers."""

    _rows: Tensor  # (slots, width)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        return not self._rows.numel() or bool(self._rows.amin() >= 0)

    def rows(self) -> Tensor:
        return self._rows

    def _entries(self, start: int, stop: int) -> Keys:
        return Vectors(self._rows[:, start:stop])

    def _grouped(self, start: int, stop: int, groups: int) -> Keys:
        return Grouped(self._rows[:, start:stop].unflatten(1, (groups, -1)))

    def seen_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        return self._rows.to(values.dtype).mT @ (values @ vectors)

    def pair(self, queries: Tensor) -> Tensor:
        return queries @ self._rows.to(queries.dtype).mT

    def outer(self, values: Tensor) -> Tensor:
        return values.mT @ self._rows

    def outers(self, values: Tensor) -> Tensor:
        return values[:, :, None] * self._rows[:, None, :]

    def outer_squares(self, values: Tensor) -> Tensor:
        return values.square().mT @ self._rows.square()

    def effective(self, coefficient: Tensor, query: Tensor) -> Tensor:
        return self._rows @ (coefficient * query).mT

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        rows = self._rows if factors is None else self._rows.double() * factors.double()[:, None]  # either may be tiny
        add_by_group(sums, rows, codes)


@dataclass(frozen=True, eq=False)
class Grouped(Keys):
    """Rows of numbers, of which each group of outputs sees its own."""

    _rows: Tensor  # (slots, groups, width)

    def __len__(self) -> int:
        return len(self._rows)

    def _entries(self, start: int, stop: int) -> Keys:
        return self

    def _by_group(self, of_outputs: Tensor) -> Tensor:
        """Return something of outputs (n, d_out) by their groups: (n, groups, outputs of each)."""
        by_group: Tensor = of_outputs.unflatten(1, (self._rows.shape[1], -1))
        return by_group

    def _by_query(self, queries: Tensor) -> Tensor:
        by_group: Tensor = queries.unflatten(1, tuple(self._rows.shape[1:]))
        return by_group

    def pair(self, queries: Tensor) -> Tensor:
        return queries @ self._rows.flatten(1).to(queries.dtype).mT

    def pair_groups(self, queries: Tensor) -> Tensor:
        return torch.einsum("sgw,ngw->sgn", self._rows.to(queries.dtype), self._by_query(queries))

    def seen(self, values: Tensor, vectors: Tensor) -> Tensor:
        signals = self._rows.to(vectors.dtype) @ vectors  # (slots, groups, n)
        if values.shape[1] == self._rows.shape[1]:  # one output a group: many tiny products would take long
            return (values[:, :, None] * signals).sum(dim=0)
        return torch.einsum("sgo,sgn->gon", self._by_group(values), signals).flatten(0, 1)

    def seen_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        by_group = vectors.unflatten(0, (self._rows.shape[1], -1))  # (groups, outputs of each, n)
        return torch.einsum("sgw,sgo,gon->wn", self._rows.to(values.dtype), self._by_group(values), by_group)

    def contributions(self, values: Tensor, queries: Tensor, directions: Tensor) -> Tensor:
        along = torch.einsum("sgo,ngo->sgn", self._by_group(values), self._by_group(directions))
        return (along * self.pair_groups(queries)).sum(dim=1)

    def outer(self, values: Tensor) -> Tensor:
        return torch.einsum("sgo,sgw->gow", self._by_group(values), self._rows).flatten(0, 1)

    def outers(self, values: Tensor) -> Tensor:
        return torch.einsum("sgo,sgw->sgow", self._by_group(values), self._rows).flatten(1, 2)

    def outer_squares(self, values: Tensor) -> Tensor:
        return Grouped(self._rows.square()).outer(values.square())

    def effective(self, coefficient: Tensor, query: Tensor) -> Tensor:
        by_group = coefficient.unflatten(0, (self._rows.shape[1], -1))  # (groups, outputs of each, width)
        scaled = by_group * self._by_query(query[None])[0][:, None]
        return torch.einsum("sgw,gow->sgo", self._rows, scaled).flatten(1)

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        Vectors(self._rows.flatten(1)).add_to(sums, codes, factors)


@dataclass(frozen=True, eq=False)
class OneHot(Keys):
    """Where each key's 1 is."""

    _index: Tensor  # (slots,)
    _width: int

    def __len__(self) -> int:
        return len(self._index)

    def _entries(self, start: int, stop: int) -> Keys:
        return self

    def pair(self, queries: Tensor) -> Tensor:
        return queries[:, self._index]

    def outer(self, values: Tensor) -> Tensor:
        rows: Tensor = values.new_zeros(self._width, values.shape[1])
        return rows.index_add_(0, self._index, values).mT

    def seen_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        return self.outer(values @ vectors).mT

    def outers(self, values: Tensor) -> Tensor:
        rows = torch.zeros(len(self), self._width, values.shape[1], dtype=values.dtype)
        rows[torch.arange(len(self)), self._index] = values
        return rows.mT

    def outer_squares(self, values: Tensor) -> Tensor:
        return self.outer(values.square())

    def effective(self, coefficient: Tensor, query: Tensor) -> Tensor:
        return (coefficient[:, self._index] * query[self._index]).mT

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        cell = torch.from_numpy(codes) * self._width + self._index
        counted = torch.ones(len(cell), dtype=torch.float64) if factors is None else factors.double()
        sums.view(-1).index_add_(0, cell, counted)


@dataclass(frozen=True, eq=False)
class Ones(Keys):
    """Keys of one entry, which is always 1: a bias is a weight of such keys."""

    _slots: int

    def __len__(self) -> int:
        return self._slots

    def _entries(self, start: int, stop: int) -> Keys:
        return self

    def rows(self) -> Tensor:
        return torch.ones(self._slots, 1)

    def pair(self, queries: Tensor) -> Tensor:
        return queries.expand(-1, self._slots)

    def outer(self, values: Tensor) -> Tensor:
        return values.sum(dim=0)[:, None]

    def seen_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        return self.outer(values @ vectors).mT

    def outers(self, values: Tensor) -> Tensor:
        return values[:, :, None]

    def outer_squares(self, values: Tensor) -> Tensor:
        return values.square().sum(dim=0)[:, None]

    def effective(self, coefficient: Tensor, query: Tensor) -> Tensor:
        return (coefficient * query).mT.expand(self._slots, -1)

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        counted = torch.ones(self._slots, dtype=sums.dtype) if factors is None else factors.to(sums.dtype)
        sums[:, 0].index_add_(0, torch.from_numpy(codes), counted)


def paired_with(use: Use, queries: Tensor) -> Tensor:
    """Return what a use's keys are paired with (queries, width): the same entries of the queries, or 1."""
    return queries.new_ones(len(queries), 1) if use.columns is None else queries[:, use.entries]


def add_by_group(sums: Tensor, rows: Tensor, codes: NDArray[np.int64]) -> None:
    """Add each row to the sum of its group: (groups, d)."""
    index = torch.from_numpy(codes)
    if len(sums) <= _MAX_INDICATED and rows.shape[1] > _NARROW:
        indicator = torch.zeros(len(sums), len(codes), dtype=rows.dtype)
        indicator[index, torch.arange(len(codes))] = 1
        added = indicator @ rows
        # float32 may hold each row, but not their sum
        sums += added if bool(added.isfinite().all()) else indicator.double() @ rows.double()
    else:
        sums.index_add_(0, index, rows.to(sums.dtype))
