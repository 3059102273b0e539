"""Values without their zeros, whose bits and numbers do not fit each other, or a run that has none.

Bits are those of the run `relu`: nine outputs, so two bytes for each slot, of which seven bits are to spare.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.store.hostile.edits import LAST, SECOND, Case, Edit, poke, put, replace, set_manifest
from tests.store.hostile.forge import LEFT_OUT, Forged, ForgedShard

Array = NDArray[Any]

MASK, VALUES = "slots/0/value_mask", "slots/0/values"
_WIDTH = 9


def with_its_zeros(shard: ForgedShard) -> None:
    """The same values with their zeros, put back one by one, if they were left out."""
    if MASK in shard.tensors:
        bits, values = shard.tensors.pop(MASK), shard.tensors[VALUES]
        left = iter(values)
        rows = [[next(left) if row[i // 8] >> (7 - i % 8) & 1 else 0 for i in range(_WIDTH)] for row in bits]
        shard.tensors[VALUES] = np.array(rows, dtype=values.dtype)


def _stored(which: Callable[[Array], Array]) -> Edit:
    """The values of the last shard, of which others are stored: `which` is given all of them."""

    def edit(forged: Forged) -> None:
        with_its_zeros(forged.shards[2])
        tensors = forged.shards[2].tensors
        there = which(tensors[VALUES]).astype(bool)  # (slots, d_out)
        tensors |= {MASK: np.packbits(there, axis=1), VALUES: tensors[VALUES][there]}

    return edit


def _misplaced(forged: Forged) -> None:
    """Bits and numbers that begin at an odd byte."""
    for shard in forged.shards[1:]:
        shard.tensors = {"state/buffers/x": np.zeros(1, np.int8), **shard.tensors}


def _last_row_only(values: Array) -> Array:
    there = np.zeros_like(values)
    there[-1] = 1
    return there


AS_GOOD: dict[str, Edit] = {
    "as they were recorded": lambda forged: None,
    "every entry, zeros too": _stored(np.ones_like),
    "some of the zeros": _stored(
        lambda values: (values != 0) | (np.arange(values.size).reshape(values.shape) % 3 == 0)
    ),
    "none": _stored(np.zeros_like),
    "the last row's": _stored(_last_row_only),
    "in one shard of two": lambda forged: with_its_zeros(forged.shards[1]),
    "in the other one": lambda forged: with_its_zeros(forged.shards[2]),
    "at an odd byte": _misplaced,
    "no numbers": lambda f: f.shards[2].tensors[VALUES].fill(np.nan),
}  # values that are stored otherwise, and have to be read as those with their zeros


def take_a_bit_each(forged: Forged, slots: int) -> None:
    """One backward pass of so many slots, all of whose values are zero."""
    tensors = forged.shards[1].tensors
    for name in [name for name in tensors if name.startswith(("slots/0/key_index", "slots/0/value_", "tags/"))]:
        tensors[name] = np.resize(tensors[name], (slots, *tensors[name].shape[1:]))
    tensors["slots/0/pass_rows"][:] = slots
    tensors |= {MASK: np.zeros_like(tensors[MASK]), VALUES: tensors[VALUES][:0]}


def _a_bit(at: tuple[int, int], bit: int, numbers: int = 0, shard: int = 1) -> Edit:
    """A bit the other way round, and so many numbers more or fewer."""

    def edit(forged: Forged) -> None:
        tensors = forged.shards[shard].tensors
        tensors[MASK][at] ^= bit
        tensors[VALUES] = np.resize(tensors[VALUES], len(tensors[VALUES]) + numbers)

    return edit


def _beside(**columns: Array) -> Edit:
    """Columns in a run that has none of the kind."""

    def edit(forged: Forged) -> None:
        for name, column in columns.items():
            forged.shards[1].tensors[f"slots/0/{name}"] = column

    return edit


def _emptied(*names: str) -> Edit:
    def edit(forged: Forged) -> None:
        for name in names:
            forged.shards[1].tensors[name] = forged.shards[1].tensors[name][:0]

    return edit


def _dense_beside_its_bits(forged: Forged) -> None:
    bits = forged.shards[1].tensors[MASK]
    with_its_zeros(forged.shards[1])
    forged.shards[1].tensors[MASK] = bits


def _with_its_last_bits_moved(forged: Forged) -> None:
    """As many as before, in another row: nobody can tell."""
    bits = forged.shards[2].tensors[MASK]
    bits[:] = bits[::-1].copy()


_BITS, _NO_BITS = np.full((2, 1), 0x80, np.uint8), np.zeros((2, 1), np.uint8)
_ONES, _NONE = np.ones(2, np.float32), np.ones(0, np.float32)


def _relu(name: str, edit: Edit, says: str = MASK, file: str = SECOND) -> Case:
    return Case(f"zeros: {name}", edit, file, "relu", says=says)


MASKS = [
    *(_relu(f"bit {bit} beyond the width", _a_bit((0, -1), bit, 1), "more than 9") for bit in (1, 2, 0x40)),
    _relu("a bit beyond the width, in the last row", _a_bit((-1, -1), 1, 1, 2), "more than 9", LAST),
    _relu("a bit beyond the width instead of one within", _a_bit((0, -1), 0x81), "more than 9"),
    _relu("a bit more or less", _a_bit((0, 0), 0x80), "add up"),
    _relu("a bit more or less, in the last row", _a_bit((-1, 0), 1, 0, 2), "add up", LAST),
    _relu("a number more", _a_bit((0, 0), 0, 1), "add up"),
    _relu("a number less", _a_bit((0, 0), 0, -1), "add up"),
    _relu("bits without a number", _emptied(VALUES), "add up"),
    _relu("numbers without a bit", replace(MASK, np.zeros_like), "add up"),
    _relu("every bit", replace(MASK, lambda bits: bits | 0xFF), "more than 9"),
    _relu("every bit within the width", replace(MASK, lambda bits: bits | np.array([0xFF, 0x80], np.uint8)), "add up"),
    *(
        _relu(f"bits of shape {shape}", replace(MASK, lambda bits, shape=shape: np.resize(bits, shape)))  # type: ignore[misc]
        for shape in ((2, 1), (2, 3), (1, 2), (3, 2), (4,), (2, 9), (0, 2), (2, 0), (1, 2, 2))
    ),
    *(
        _relu(f"bits in {dtype}", replace(MASK, lambda bits, dtype=dtype: bits.astype(dtype)))  # type: ignore[misc]
        for dtype in ("int8", "bool", "uint16", "float32")
    ),
    *(
        _relu(f"numbers of shape {shape}", replace(VALUES, lambda v, shape=shape: v.reshape(shape)), VALUES)  # type: ignore[misc]
        for shape in ((1, -1), (-1, 1))
    ),
    _relu("numbers in another precision", replace(VALUES, lambda values: values.astype(np.float32)), VALUES),
    _relu("bits without values", lambda f: put(f.shards[1].tensors, [VALUES], LEFT_OUT), VALUES),
    _relu("values without bits", lambda f: put(f.shards[1].tensors, [MASK], LEFT_OUT), VALUES),
    _relu("bits beside dense values", _dense_beside_its_bits, VALUES),
    _relu("bits of no slots", _emptied(MASK, VALUES)),
    _relu(
        "bits of a layer that is not there",
        lambda f: put(f.shards[1].tensors, ["slots/1/value_mask"], _BITS),
        "slots/1",
    ),
    _relu(
        "bits before the first step", lambda f: put(f.shards[0].tensors, [MASK], _BITS), file="shard-000000.safetensors"
    ),
    *(
        Case(f"zeros: {name} in {run}", _beside(**columns), SECOND, run, says="does not belong")
        for run in ("keys_only", "merged")
        for name, columns in (
            ("bits", {"value_mask": _BITS}),
            ("bits of nothing", {"value_mask": _NO_BITS}),
            ("bits and values", {"value_mask": _BITS, "values": _ONES}),
            ("bits and no values", {"value_mask": _NO_BITS, "values": _NONE}),
        )
    ),
    Case(
        "zeros: said to be keys only", set_manifest(False, "storage", "values"), SECOND, "relu", says="does not belong"
    ),
    Case("zeros: bits beside the values of a narrow layer", _beside(value_mask=_BITS), SECOND, says=VALUES),
    Case("zeros: bits of another row", _with_its_last_bits_moved, LAST, "relu", refused=False),
    Case("zeros: a number that is infinite", poke(VALUES, np.inf), SECOND, "relu", refused=False),
]
