"""Turn what the user says of the rows of a batch into columns with one entry a slot."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import RecordingError
from dualform.kinds import Ragged
from dualform.recorder.provenance.layout import Layout, ranks
from dualform.store.schema import RESERVED

Array = NDArray[Any]

_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "string"}
_STORED = {"bool": np.bool_, "int": np.int64, "float": np.float64}
_MAX_WHOLE_FLOAT = 2**53  # beyond which neighbouring whole numbers are one float
_SURROGATES = range(0xD800, 0xE000)


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
            self._columns[name] = _column(name, value)
            self.kinds[name] = _KINDS[self._columns[name].dtype.kind]
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


def _column(name: str, value: Any) -> Array:
    """Return a copy of what the user says as it is stored; raise unless every entry is kept exactly.

    A copy: the user's buffer may be filled with the next batch before the slots are written.
    """
    given = _as_array(name, value)
    kind = _KINDS.get(given.dtype.kind)
    if kind is None:
        raise RecordingError(
            f"tag {name!r} must hold numbers or strings, not {given.dtype}: got {type(value).__name__}. What cannot be "
            "told of a row has a value of its own, such as -1 or ''"
        )
    column = np.array(given, dtype=_STORED.get(kind, given.dtype.newbyteorder("=")))
    if kind == "string":
        _check_text(name, column)
    elif kind != "bool":
        changed = (column != given) & (given == given)
        if changed.any():
            _refuse(name, given[changed].reshape(-1)[0])
    return column


def _as_array(name: str, value: Any) -> Array:
    """Return an array of whatever the user has, in which nothing was rounded or turned into something else."""
    try:
        if isinstance(value, Tensor):
            # numpy has no bfloat16, and float64 holds all that torch has.
            return (value.double() if value.is_floating_point() else value).detach().cpu().numpy()
        if np.ma.is_masked(value):
            raise RecordingError(f"tag {name!r} has masked entries: fill them with a value of their own, such as -1")
        array = np.asarray(value)
        if isinstance(value, np.ndarray | np.generic) and array.dtype.kind not in "OT":
            return array
        entries = np.asarray(value, dtype=object)
        if array.dtype.kind in "OT":  # strings of any length, as pandas has them; or what has no common type
            array = np.asarray(entries.tolist())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RecordingError(
            f"tag {name!r} cannot be read: {error}. Give an array, a tensor or a list of numbers or strings"
        ) from None
    for entry, kept in zip(entries.reshape(-1).tolist(), array.reshape(-1).tolist(), strict=True):
        rounded = isinstance(entry, int) and isinstance(kept, float) and abs(entry) > _MAX_WHOLE_FLOAT
        if rounded or (entry != kept and entry == entry):
            _refuse(name, entry)
    return array


def _refuse(name: str, entry: Any) -> NoReturn:
    raise RecordingError(
        f"tag {name!r} cannot keep {entry!r} exactly beside the other entries: give all as whole numbers below 2**63, "
        "all as floats, or all as strings that do not end in '\\0'"
    )


def _check_text(name: str, column: Array) -> None:
    """Raise for half a surrogate pair, as in names of files that are not UTF-8: it has no bytes to be stored by."""
    characters = column.reshape(-1).view(np.uint32)
    if ((characters >= _SURROGATES.start) & (characters < _SURROGATES.stop)).any():
        text = next(text for text in column.reshape(-1).tolist() if any(ord(c) in _SURROGATES for c in text))
        raise RecordingError(
            f"tag {name!r} holds {text!r}, which is no valid text (half a surrogate pair): pass "
            "text.encode(errors='backslashreplace').decode() instead"
        )


def _spread(leading: tuple[int, ...], name: str, column: Array, layer: str) -> Array:
    shape = column.shape
    if isinstance(leading, Ragged) and shape != leading and shape:
        return _spread_ragged(leading, name, column, layer)
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


def _spread_ragged(leading: Ragged, name: str, column: Array, layer: str) -> Array:
    """Spread a tag over packed sequences: (batch,), or an entry for each place in the padded batch."""
    if column.shape == (leading.batch,):
        return column[leading.examples].reshape(-1)
    sides = [side for side in (0, 1) if column.ndim == 2 and column.shape[side] == leading.batch]
    fitting = [side for side in sides if column.shape[1 - side] == 1 or column.shape[1 - side] >= leading.time]
    if len(fitting) != 1:
        problem = "could be (batch, time) or (time, batch)" if fitting else "does not fit"
        raise RecordingError(
            f"tag {name!r} has shape {column.shape}, which {problem}: layer {layer!r} got {len(leading.examples)} rows "
            f"of {leading.batch} packed sequences, the longest of {leading.time}: give one entry a sequence, the tag "
            "the shape of the padded batch, or a scalar for all rows"
        )
    by_example = column if fitting == [0] else column.T
    place = ranks(leading.examples) if by_example.shape[1] > 1 else np.zeros_like(leading.examples)
    spread = by_example[leading.examples, place]
    return spread.reshape(-1)


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
