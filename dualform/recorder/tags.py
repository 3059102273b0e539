"""Turn what the user says of the rows of a batch into columns with one entry a slot."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import RecordingError
from dualform.recorder.provenance.layout import Layout
from dualform.store.schema import RESERVED

Array = NDArray[Any]

_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "string"}
_STORED = {"bool": np.bool_, "int": np.int64, "float": np.float64}


class Tags:
    """What the user says of the rows of the coming forward passes."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.kinds: dict[str, str] = {}
        self._columns: dict[str, Array] = {}
        self._over: dict[Layout | tuple[int, ...], dict[str, Array]] = {}
        for name, value in columns.items():
            if name in RESERVED:
                raise RecordingError(f"a tag cannot be called {name!r}: every table has a column of that name")
            if not name.isprintable():
                raise RecordingError(f"a tag cannot be called {name!r}: it could not be shown")
            if "/" in name:  # which parts the names of layers from those of tags
                raise RecordingError(f"a tag cannot be called {name!r}: leave out the slash")
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            kind = _KINDS.get(array.dtype.kind)
            if kind is None:
                raise RecordingError(
                    f"tag {name!r} must hold numbers or strings, not {array.dtype}: got {type(value).__name__}"
                )
            self.kinds[name] = kind
            # A copy: the user's buffer may be filled with the next batch before the slots are written.
            self._columns[name] = np.array(array, dtype=_STORED.get(kind, array.dtype))
        by_row = [column for column in self._columns.values() if column.ndim]
        self.by_row = bool(by_row)  # whether a tag is not the same for all rows
        # The number of examples, if there is a tag with one entry for each
        self.batch = next((len(column) for column in by_row if column.size == len(column)), None)

    def only(self, name: str, step: int) -> dict[str, str]:
        """Return the kind of the tag that slots are merged by; raise if it is missing."""
        if name not in self.kinds:
            raise RecordingError(
                f"step {step}: slots are merged by tag {name!r}, which is missing: call recorder.tag({name}=...) "
                "before every forward pass of a step. The steps before it are kept"
            )
        return {name: self.kinds[name]}

    def over(self, rows: Layout | tuple[int, ...], layer: str) -> dict[str, Array]:
        """Spread each tag over all rows of a layer: (slots,) arrays, masked where a row has no such tag.

        Args:
            rows: Whose each row is. Or, where that is not known, the leading dimensions of the layer's input; then a
                tag with as many dimensions as the rows is broadcast as numpy does; one with fewer goes with the first
                ones, so (batch,) labels every token of (batch, time). Where that could be either, it raises. Rows that
                the model has flattened get the tag flattened likewise.
            layer: The layer's name, for errors.
        """
        if rows not in self._over:  # most layers have the same rows
            spread = rows.spread if isinstance(rows, Layout) else partial(_spread, rows)
            self._over[rows] = {name: spread(name, column, layer) for name, column in self._columns.items()}
        return self._over[rows]


def _spread(leading: tuple[int, ...], name: str, column: Array, layer: str) -> Array:
    shape = column.shape
    if shape == leading:
        return column.reshape(-1)
    missing = len(leading) - len(shape)
    if missing > 0 and len(shape) == 1 and leading.count(shape[0]) > 1:
        raise RecordingError(
            f"tag {name!r} of shape {shape} could go with several dimensions of {leading} in layer {layer!r}: "
            f"give it {len(leading)} dimensions, such as (batch, 1) or (1, batch)"
        )
    if len(leading) == 1 and len(shape) > 1 and column.size == leading[0]:
        return column.reshape(-1)  # a decoder whose input was flattened: all tokens of (batch, time), row by row
    try:
        full = np.broadcast_to(column.reshape(*shape, *[1] * missing) if shape else column, leading)
    except ValueError:
        raise RecordingError(
            f"tag {name!r} has shape {shape}, but layer {layer!r} got rows of shape {leading}: "
            "give one entry a row, or a scalar for all of them"
        ) from None
    return full.reshape(-1)


def joined(calls: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    """Join the columns of several calls, one after the other."""
    if len(calls) == 1:
        return calls[0]
    return {name: _concatenated([columns[name] for columns in calls]) for name in calls[0]}


def _concatenated(columns: Sequence[Array]) -> Array:
    masked = any(isinstance(column, np.ma.MaskedArray) for column in columns)
    joined: Array = np.ma.concatenate(columns) if masked else np.concatenate(columns)  # type: ignore[no-untyped-call]
    return joined


def check_same(kinds: Mapping[str, str], expected: Mapping[str, str], step: int) -> None:
    """Raise unless a batch has the tags of the first one, of the same kinds."""
    if kinds == expected:
        return
    missing = [name for name in expected if name not in kinds]
    added = [name for name in kinds if name not in expected]
    if missing:
        problem = f"tag {missing[0]!r} is missing: call recorder.tag before every forward pass of a step"
    elif added:
        problem = f"tag {added[0]!r} is new: earlier batches were recorded without it"
    else:
        name = next(name for name in kinds if kinds[name] != expected[name])
        problem = f"tag {name!r} holds {kinds[name]}, before it held {expected[name]}"
    raise RecordingError(f"step {step}: {problem}. The steps before it are kept")
