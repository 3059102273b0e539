"""The keys of some slots, and the few products that all answers are made of.

    block.keys.weights(queries)             # (queries, slots): x_t . q
    block.keys.outer(values)                # (d_out, d_in): the sum of e_t x_t^T

Most keys are rows of numbers. An embedding's are one-hot: only where the 1 is was stored, and a product
with such a key is a look-up. `columns` picks the part of the key that one of several weights multiplies.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.duality import attention_matrix, attention_weights

_ALL = slice(None)


class Keys(Protocol):
    """(slots, d_in), however they are kept."""

    @property
    def nonnegative(self) -> bool: ...

    def weights(self, queries: Tensor, columns: slice = _ALL) -> Tensor:
        """(queries, slots), of queries as wide as the columns and in their precision."""

    def outer(self, values: Tensor, columns: slice = _ALL) -> Tensor:
        """(d_out, columns)"""

    def outer_squares(self, values: Tensor, columns: slice = _ALL) -> Tensor:
        """(d_out, columns): the sum of squares of what `outer` is the sum of."""

    def through(self, matrix: Tensor, query: Tensor, columns: slice = _ALL) -> Tensor:
        """(slots, rows of the matrix): sum_j matrix[i, j] x[j] q[j], of a matrix and a query as wide as the columns."""

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        """Add each key, times its factor, to the sum of its group: (groups, d_in)."""


class DenseKeys:
    """Rows of numbers."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows  # (slots, d_in)

    @property
    def nonnegative(self) -> bool:
        return bool((self._rows >= 0).all())

    def weights(self, queries: Tensor, columns: slice = _ALL) -> Tensor:
        return attention_weights(self._rows[:, columns].to(queries.dtype), queries)

    def outer(self, values: Tensor, columns: slice = _ALL) -> Tensor:
        return attention_matrix(self._rows[:, columns], values)

    def outer_squares(self, values: Tensor, columns: slice = _ALL) -> Tensor:
        return attention_matrix(self._rows[:, columns].square(), values.square())

    def through(self, matrix: Tensor, query: Tensor, columns: slice = _ALL) -> Tensor:
        return self._rows[:, columns] @ (matrix * query).mT

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        rows = self._rows if factors is None else self._rows * factors.to(self._rows.dtype)[:, None]
        add_by_group(sums, rows, codes)


class OneHotKeys:
    """Where each key's 1 is."""

    nonnegative = True

    def __init__(self, index: Tensor, d_in: int) -> None:
        self._index, self._d_in = index, d_in  # (slots,)

    def weights(self, queries: Tensor, columns: slice = _ALL) -> Tensor:
        return queries[:, self._index]

    def outer(self, values: Tensor, columns: slice = _ALL) -> Tensor:
        rows = torch.zeros(self._d_in, values.shape[1], dtype=values.dtype)
        return rows.index_add_(0, self._index, values).mT

    def outer_squares(self, values: Tensor, columns: slice = _ALL) -> Tensor:
        return self.outer(values.square(), columns)

    def through(self, matrix: Tensor, query: Tensor, columns: slice = _ALL) -> Tensor:
        return (matrix[:, self._index] * query[self._index]).mT

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        cell = torch.from_numpy(codes) * self._d_in + self._index
        counted = torch.ones(len(cell), dtype=torch.float64) if factors is None else factors.double()
        sums.view(-1).index_add_(0, cell, counted)


def add_by_group(sums: Tensor, rows: Tensor, codes: NDArray[np.int64]) -> None:
    """Add each row to the sum of its group: (groups, d)."""
    index = torch.from_numpy(codes)
    if len(sums) <= 256:  # one product with the groups' indicators is quicker than scattered adding
        indicator = torch.zeros(len(sums), len(codes), dtype=rows.dtype)
        indicator[index, torch.arange(len(codes))] = 1
        sums += indicator @ rows
    else:
        sums.index_add_(0, index, rows.to(sums.dtype))
