"""Sums of many matrices."""

from torch import Tensor


class LongSum:
    """A sum of many matrices, in float64 from one stretch of them to the next: to widen each takes long."""

    _STRETCH = 64

    def __init__(self) -> None:
        self._long: Tensor | float = 0.0
        self._short: Tensor | None = None
        self._count = 0

    def add(self, matrix: Tensor) -> None:
        """Take a matrix, which is from now on the sum's own."""
        self._short = matrix if self._short is None else self._short.add_(matrix)
        self._count += 1
        if self._count == self._STRETCH:
            self._long, self._short, self._count = self.total, None, 0

    @property
    def total(self) -> Tensor | float:
        return self._long if self._short is None else self._long + self._short.double()
