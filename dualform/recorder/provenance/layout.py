"""Say whose each row of a layer is, and spread tags over the rows accordingly.

A row belongs to one example of the batch, its owner, or to none: a position table has rows that all examples share.
Most owners follow from the row's number i by a form that holds for batches of every size:

    axis k      the owner is the row's index along dimension k of the layer's input
    blocks      i // m: the rows of an example are together
    cycle       i % B: the examples come in turns
    stride C    (i // C) % B
    packed      the number of the sequence, which packed sequences tell of each row
    shared      no row has an owner

`B` is the number of examples. Arrays here are numpy's, (rows,).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.errors import RecordingError
from dualform.kinds import Ragged

Array = NDArray[Any]
Owners = NDArray[np.int64]

SHARED = -1  # instead of an owner: no single example's
UNKNOWN = -2


class Form(NamedTuple):
    """How owners follow from the numbers of the rows."""

    name: Literal["axis", "blocks", "cycle", "stride", "packed", "shared"]
    number: int = 0  # of the axis, or C

    def owners(self, leading: tuple[int, ...], batch: int) -> Owners | None:
        """Return the owners of rows that lie in these dimensions; None if the form does not fit them."""
        rows = prod(leading)
        if self.name == "shared":
            return np.full(rows, SHARED)
        if self.name == "packed":
            return leading.examples if isinstance(leading, Ragged) and leading.batch == batch else None
        if self.name == "axis":
            fits, stride = leading[self.number : self.number + 1] == (batch,), prod(leading[self.number + 1 :])
        else:
            per_example = rows // batch
            stride = {"blocks": per_example, "cycle": 1, "stride": self.number}[self.name]
            fits = per_example * batch == rows and rows > 0 and per_example % stride == 0
        return np.arange(rows) // stride % batch if fits else None


PACKED = Form("packed")


def forms(leading: tuple[int, ...], batch: int) -> Iterator[tuple[Form, Owners]]:
    """Yield every form that fits rows of these dimensions, with its owners."""
    per_example = prod(leading) // batch
    strides = [stride for stride in range(2, per_example) if per_example % stride == 0] if len(leading) == 1 else []
    candidates = [
        *(Form("axis", axis) for axis in range(len(leading))),
        PACKED, Form("blocks"), Form("cycle"), *(Form("stride", stride) for stride in strides), Form("shared"),
    ]  # fmt: skip
    for form in candidates:
        owners = form.owners(leading, batch)
        if owners is not None:
            yield form, owners


def ranks(owners: Owners) -> Owners:
    """Number the rows of each owner, in order."""
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(owners) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(owners)])
    numbers = np.empty(len(owners), dtype=np.int64)
    numbers[order] = np.arange(len(owners)) - np.repeat(starts, lengths)
    return numbers


@dataclass(frozen=True)
class Batch:
    """The examples of a call: how many there are, and where they are in its main input."""

    size: int
    main: int  # the number of the main input, among the tensors of the arguments
    axis: int  # of the main input
    shape: tuple[int, ...]  # of the main input
    either: bool = False  # another axis of the same size could be the batch as well


@dataclass(frozen=True, eq=False)
class Layout:
    """Whose each row of one call of a layer is."""

    batch: Batch
    leading: tuple[int, ...]  # dimensions of the layer's input that the rows are spread over
    owners: Owners  # SHARED where a row has none

    @cached_property
    def _ranks(self) -> Owners:
        return ranks(self.owners)

    @cached_property
    def _rows_per_example(self) -> int | None:
        """None: not all have equally many."""
        counts = np.bincount(self.owners[self.owners >= 0], minlength=self.batch.size)
        return int(counts[0]) if (counts == counts[0]).all() else None

    def spread(self, name: str, column: Array, layer: str) -> Array:
        """Return the tag of each row: (rows,), masked where a row has none.

        One entry an example goes to all rows of the example. A tag of more dimensions is laid out like the call's main
        input, and its entries go to the rows of each example in order; where an example has more rows or fewer than
        entries, rows have no such tag.
        """
        if not column.ndim or (column.size == 1 and self.batch.size > 1):
            return np.full(len(self.owners), column.reshape(()))
        entries = self._by_example(column)
        if entries is None:
            raise self._misfit(name, column, layer)
        if self.batch.either and column.ndim == 1 and len(self.batch.shape) > 1:
            raise RecordingError(
                f"tag {name!r} of shape {column.shape} could go with several dimensions of {self.batch.shape[:2]} in "
                f"layer {layer!r}: give it 2 dimensions, such as (batch, 1) or (1, batch)"
            )
        ends_early = isinstance(self.leading, Ragged) and entries.shape[1] >= self.leading.time  # the rest is padding
        if entries.shape[1] not in (1, self._rows_per_example) and not ends_early:
            return _masked(np.zeros(len(self.owners), dtype=column.dtype), np.ones(len(self.owners), dtype=bool))
        example = np.maximum(self.owners, 0) if len(entries) > 1 else np.zeros_like(self.owners)
        rank = self._ranks if entries.shape[1] > 1 else np.zeros_like(self.owners)
        shared = self.owners < 0
        return _masked(entries[example, np.where(shared, 0, rank)], shared)

    def _by_example(self, column: Array) -> Array | None:
        """Return a tag as (examples, entries), or (1, entries) if it is the same for all; None if it does not fit."""
        shape, (size, axis, main) = column.shape, (self.batch.size, self.batch.axis, self.batch.shape)
        if shape[0] == size == column.size:
            return column.reshape(-1, 1)
        like_main = len(shape) <= len(main) and all(a in (1, b) for a, b in zip(shape, main, strict=False))
        if column.ndim > max(1, axis) and (like_main or shape[axis] == size):
            return np.moveaxis(column, axis, 0).reshape(shape[axis], -1)
        if column.ndim > 1 and shape[0] == size:
            return column.reshape(size, -1)
        if column.size == size:
            return column.reshape(-1, 1)  # the model was given all tokens of (batch, time), row by row
        if shape == (prod(main[:2]),) and axis < 2:
            return np.moveaxis(column.reshape(main[:2]), axis, 0)
        return column.reshape(1, -1) if column.ndim > 1 and shape[0] == 1 else None

    def _misfit(self, name: str, column: Array, layer: str) -> RecordingError:
        return RecordingError(
            f"tag {name!r} has shape {column.shape}, but layer {layer!r} got rows of shape {self.leading} from a batch "
            f"of {self.batch.size}: give one entry an example, the tag the shape of the batch, or a scalar for all rows"
        )


def _masked(column: Array, mask: NDArray[np.bool_]) -> Array:
    """Mask a column, unless there is nothing to mask."""
    if not mask.any():
        return column
    column[mask] = np.zeros((), dtype=column.dtype)
    return np.ma.MaskedArray(column, mask=mask)
