"""Tensors of other dtypes and shapes, and numbers that point nowhere, never end or are none."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.store.hostile.edits import (
    LAST,
    SECOND,
    Case,
    Edit,
    file_of_shard,
    poke,
    poke_byte,
    poke_number,
    put,
    replace,
    set_texts,
)  # fmt: skip
from tests.store.hostile.forge import LEFT_OUT, SIZES, Forged, Raw


def tensor_cases(run: str, tensors: dict[str, Any]) -> Iterator[Case]:
    """Each tensor of a shard in every dtype there is, missing, longer, shorter, in other shapes."""
    for name, tensor in tensors.items():
        raw = Raw.of(tensor)
        for dtype, size in SIZES.items():
            if dtype != raw.dtype:
                other = Raw(dtype, raw.shape, bytes(tensor.size * size))
                yield _with(run, f"as {dtype}", name, other)
        yield _with(run, "missing", name, LEFT_OUT)
        yield _with(run, "doubled", name, np.concatenate([tensor, tensor]) if tensor.ndim else tensor.repeat(2))
        yield _with(run, "halved", name, tensor[: len(tensor) // 2] if tensor.ndim else tensor.reshape(1)[:0])
        yield _with(run, "empty", name, tensor.reshape(-1)[:0])
        yield _with(run, "flat", name, tensor.reshape(-1))
        yield _with(run, "a row", name, tensor.reshape(1, -1))
        yield _with(run, "transposed", name, tensor.T)
        yield _with(run, "one deeper", name, tensor[None])
        for shape in ([0, 2**62], [2**62, 0], [0] * 100, [2**64 - 1, 0], [0, 2**63]):
            yield _with(run, f"of shape {str(shape)[:30]}", name, Raw(raw.dtype, shape, b""))
        yield _with(run, "of 100 dimensions", name, Raw(raw.dtype, [1] * 99 + [tensor.size], raw.content))


def _with(run: str, what: str, name: str, tensor: Any) -> Case:
    def edit(forged: Forged) -> None:
        put(forged.shards[1].tensors, [name], tensor)

    return Case(f"{name} {what}", edit, SECOND, run, refused=False)


FLOATS = (np.nan, np.inf, -np.inf, 1e308, -1.0, 0.0, 1.0)
BYTES = (0, 1, 0x7F, 0x80, 0xFF)
INTEGERS = (-1, 0, 1, 2, 7, 2**15 - 1, -(2**15), 2**31, 2**62, 2**63 - 1, -(2**63))
_TROUBLE: dict[str, Sequence[float]] = {"f": FLOATS, "i": INTEGERS, "u": BYTES}  # by numpy's kinds of numbers


def number_cases(run: str, shard: int, tensors: dict[str, Any]) -> Iterator[Case]:
    """Every number of a shard, replaced by each of those that make trouble."""
    for name, tensor in tensors.items():
        if tensor.dtype == np.bool_:
            yield Case(
                f"{name} = 2 for true", partial(poke_byte, shard, name, 2), file_of_shard(shard), run, refused=False
            )
        for value in _TROUBLE.get(tensor.dtype.kind, ()):
            for at in range(tensor.size):
                edit = partial(poke_number, shard, name, value, at)
                yield Case(f"{name}[{at}] = {value}", edit, file_of_shard(shard), run, refused=False)


def _zeros(name: str, shape: tuple[int, ...]) -> Edit:
    return replace(name, lambda tensor: np.zeros(shape, np.float32))


def _of_no_slots(forged: Forged) -> None:
    """A layer that is there with no slots at all."""
    for name, tensor in forged.shards[1].tensors.items():
        if name.startswith(("slots/", "tags/")):
            forged.shards[1].tensors[name] = tensor[:0]


def _a_pass_of_nothing(forged: Forged) -> None:
    tensors = forged.shards[2].tensors
    for name, value in (("pass_step", 1), ("pass_rows", 0), ("factors", 1.0)):
        column = tensors[f"slots/0/{name}"]
        tensors[f"slots/0/{name}"] = np.concatenate([np.full_like(column[:1], value), column])


def _misplaced(forged: Forged) -> None:
    """Tensors that begin in the middle of a number."""
    shard = forged.shards[1]
    shard.tensors = {"state/buffers/x": np.zeros(1, np.int8), **shard.tensors}


# in an array of fixed width they would take as much room as there are texts, times the longest
_MANY_LONG_TEXTS = ["a" * 1_000_000, *(str(number) for number in range(4_000))]
_PRECISION = "slots/inner/pass_precision"

NUMBERS = [
    Case("a pass of -1 slots", poke("slots/0/pass_rows", -1)),
    Case("a pass of 2^62 slots", poke("slots/0/pass_rows", 2**62)),
    Case("passes that do not add up", poke("slots/0/pass_rows", 1)),
    Case("a pass of no slots", _a_pass_of_nothing, LAST),
    Case("Adam, and a pass of no slots", _a_pass_of_nothing, LAST, "adam"),
    Case("no slots at all", _of_no_slots),
    Case("a pass before the shard", poke("slots/0/pass_step", -1)),
    Case("a pass after the shard", poke("slots/0/pass_step", 1)),
    Case("passes that go back in time", replace("slots/0/pass_step", lambda steps: steps[::-1], shard=2), LAST),
    Case("key -1", poke("slots/0/key_index", -1)),
    Case("a key that is not there", poke("slots/0/key_index", 2)),
    Case("a key of a later shard", poke("slots/0/key_index", 3)),
    Case("a one-hot key at -1", poke("slots/0/keys", -1), run="embedding"),
    Case("a one-hot key beyond the last", poke("slots/0/keys", 3), run="embedding"),
    Case("text -1", poke("tags/0/s", -1)),
    Case("a text that is not there", poke("tags/0/s", 2)),
    Case("a truth that is 2", partial(poke_byte, 1, "tags/0/t", 2)),
    Case(
        "untagged, and neither true nor false",
        partial(poke_byte, 1, "untagged/0/i", 2),
        run="untagged",
        says="untagged",
    ),
    *(
        Case(f"untagged of shape {shape}", replace("untagged/0/i", partial(np.resize, new_shape=shape)), run="untagged")
        for shape in ((1,), (3,), (0,), (2, 1), ())
    ),
    Case("untagged as bytes", replace("untagged/0/i", lambda missing: missing.view(np.uint8)), run="untagged"),
    Case("a text that is not there, of a slot that has one", poke("tags/0/s", 2, 1), run="untagged"),
    Case("a text that is not there, of a slot that has none", poke("tags/0/s", 2), run="untagged", refused=False),
    Case("slots with values that are not there", replace("untagged/0/s", np.zeros_like, 2), LAST, "untagged"),
    Case("all said to be untagged", replace("untagged/0/s", np.ones_like), run="untagged", refused=False),
    Case(
        "untagged, of no tag",
        lambda f: put(f.shards[1].tensors, ["untagged/0/x"], np.zeros(2, np.bool_)),
        says="does not belong",
    ),
    Case(
        "untagged, of no layer",
        lambda f: put(f.shards[1].tensors, ["untagged/1/i"], np.zeros(2, np.bool_)),
        says="does not belong",
    ),
    *(
        case
        for run in ("halves", "adam_halves")
        for case in (
            Case("a precision that is not there", poke(_PRECISION, 5), run=run, says="pass_precision"),
            Case("further calls of no pass", poke(_PRECISION, 3), run=run, says="do not fit together"),
            Case("calls of one pass in two precisions", poke(_PRECISION, 4, 1), run=run, says="do not fit together"),
            Case("calls of one pass with two factors", poke("slots/inner/factors", 0.5), run=run, says="fit together"),
            Case("calls of one pass in two steps", poke(_PRECISION, 3, 2, shard=2), LAST, run, says="fit together"),
            Case("a precision for each slot", replace(_PRECISION, lambda codes: np.resize(codes, 4)), run=run),
            Case("precisions of another type", replace(_PRECISION, lambda codes: codes.astype(np.int8)), run=run),
            Case("another precision", replace(_PRECISION, lambda codes: codes + 1), run=run, refused=False),
            Case("no precision", lambda f: put(f.shards[1].tensors, [_PRECISION], LEFT_OUT), run=run, refused=False),
        )
    ),
    Case(
        "a precision of keys alone",
        lambda f: put(f.shards[1].tensors, ["slots/0/pass_precision"], np.ones(1, np.uint8)),
        run="keys_only",
        says="does not belong",
    ),
    Case("a visit that never came", poke("slots/0/visits", 0), run="merged"),
    Case("fewer visits than none", poke("slots/0/visits", -5), run="merged"),
    Case("2^62 visits", poke("slots/0/visits", 2**62), run="merged"),
    Case("an exponent of 32767", poke("slots/0/value_exponent", 32767)),
    Case("an exponent of -32768", poke("slots/0/key_exponent", -32768)),
    Case("tensors that are not aligned", _misplaced, refused=False),
    Case("many texts, one of them long", set_texts(_MANY_LONG_TEXTS), refused=False),
    Case("a tensor nobody knows", lambda forged: put(forged.shards[1].tensors, ["x"], np.zeros(1))),
    Case(
        "a tensor called like a terminal's escapes",
        lambda f: put(f.shards[1].tensors, ["state/buffers/\x1b[2J"], np.zeros(1)),
    ),
    *(
        Case(
            f"momentum of shape {shape}",
            _zeros("state/optimizers/0/0.weight/momentum_buffer", shape),
        )
        for shape in ((1,), (2, 1), (3, 5), (0,), (1, 2, 1))
    ),
    Case(
        "momentum in whole numbers",
        replace("state/optimizers/0/0.weight/momentum_buffer", lambda m: m.astype(np.int32)),
    ),
    *(
        Case(
            f"{entry} of shape {shape}",
            _zeros(f"state/optimizers/0/0.weight/{entry}", shape),
            SECOND,
            "adam",
        )
        for entry in ("exp_avg", "exp_avg_sq")
        for shape in ((1,), (3, 5), (0,))
    ),
    Case(
        "Adagrad without its sums",
        lambda f: put(f.shards[1].tensors, ["state/optimizers/0/0.weight/sum"], LEFT_OUT),
        SECOND,
        "adagrad",
    ),
    Case("Adam, and a weight decay of 1e308", poke("ledger/0.weight", 1e308, 3), SECOND, "adam", says="too large"),
    Case("Adam, and a count of -1", poke("ledger/0.weight", -1.0, 9), SECOND, "adam", refused=False),
    Case("Adam, and a beta of 1", poke("ledger/0.weight", 1.0, 7), SECOND, "adam", refused=False),
    Case("Adam, and a beta of 1e308", poke("ledger/0.weight", 1e308, 8), SECOND, "adam", refused=False),
    Case(
        "weights of another precision from a shard on",
        replace("state/parameters/0.weight", lambda w: w.astype(np.float64)),
        refused=False,
    ),
]
