"""A chapter: whole steps of a run, gathered in memory until they are sealed as one shard.

`Rows` are what one backward pass sent through one layer; a `StepRecord` is one optimiser step.
Everything here is numpy: packed bytes and small tables, no live tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.store.codec.sparse import without_zeros
from dualform.store.codec.texts import Texts
from dualform.store.schema import (
    BATCHES,
    LOSSES,
    audit_tensor,
    buffer_tensor,
    gradient_tensor,
    ledger_tensor,
    remainder_tensor,
    slot_tensor,
    tag_tensor,
)
from dualform.store.shard_file import Column, neighbours_joined

Array = NDArray[Any]


class Rows(NamedTuple):  # a named tuple, because it is made for every layer in every step, and quickly
    """The slots of one backward pass through one layer, packed."""

    keys: Array | None  # (n, d_in); or pixels, of maps. None: a recipe makes keys and values again
    key_exponent: Array | None  # a row each, float16 only
    values: Array | None  # (n, d_out); None: keys only
    value_exponent: Array | None
    factors: Array  # (trained parts,): how much of the pass was in the step's gradient
    tags: Mapping[str, Array]  # (n,) each; masked where slots belong to no single example, and have no such tag
    may_repeat: bool  # the keys do not depend on anything trained: they may come again
    visits: Array | None = None  # (n,): how many slots each of these is the sum of, in a merged memory
    precision: int = 0  # code of the precision that the gradient of the pass was rounded to
    extents: tuple[int, ...] = ()  # of maps, all of one size
    slots: int | None = None  # how many there are, if not one a row of keys
    unstored_nbytes: int = 0  # of keys and values that are not there

    @property
    def nbytes(self) -> int:
        arrays = (self.keys, self.key_exponent, self.values, self.value_exponent, *self.tags.values())
        return sum(array.nbytes for array in arrays if array is not None) + self.unstored_nbytes


class Accounts(NamedTuple):
    """What is kept of a step that is due to no slot: parameters and buffers that no layer uses, and remainders."""

    gradients: Mapping[str, Column]  # parameter -> its gradient as the optimiser saw it
    buffers: Mapping[str, Column]  # buffer -> its value after the step
    remainders: Mapping[str, Column] = MappingProxyType({})  # parameter -> what its optimiser's rounding added

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for columns in self for column in columns.values())


NO_ACCOUNTS = Accounts({}, {})


class Witness(NamedTuple):
    """What tells whether a step of a recipe was taken again as it was."""

    loss: float
    batch: int  # a number that stands for the ids of its examples


@dataclass(frozen=True)
class StepRecord:
    """One optimiser step: its ledger lines, its audit, its slots."""

    ledger: Mapping[str, Sequence[float]]  # parameter -> stepped, then the optimiser's columns
    residual: Mapping[str, float]  # layer -> unexplained share of its gradient; NaN: not stepped
    rows: Mapping[str, Sequence[Rows]]  # layer -> its backward passes
    accounts: Accounts = NO_ACCOUNTS
    witness: Witness | None = None


@dataclass
class Chapter:
    """The steps since the last seal."""

    first_step: int
    steps: list[StepRecord] = field(default_factory=list)
    merged: dict[str, Rows] = field(default_factory=dict)  # layer -> all its slots, in a merged memory
    tags: Mapping[str, str] = field(default_factory=dict)  # name -> kind
    notes: list[str] = field(default_factory=list)
    nbytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # layer -> the step from which it is not recorded

    @property
    def last_step(self) -> int:
        return self.first_step + len(self.steps)

    def append(self, step: StepRecord, tags: Mapping[str, str]) -> None:
        self.steps.append(step)
        self.tags = tags
        self.nbytes += sum(rows.nbytes for passes in step.rows.values() for rows in passes) + step.accounts.nbytes

    def tables(self) -> dict[str, Column]:
        """Return the ledger and the audit as columns."""
        columns: dict[str, Column] = {}
        if self.steps:
            for parameter in self.steps[0].ledger:
                lines = np.array([step.ledger[parameter] for step in self.steps], dtype=np.float64)
                columns[ledger_tensor(parameter)] = Column([lines])  # (steps, 1 + columns)
            for layer in self.steps[0].residual:
                residual = np.array([step.residual[layer] for step in self.steps], dtype=np.float32)
                columns[audit_tensor(layer)] = Column([residual])  # (steps,)
            witnesses = [step.witness for step in self.steps if step.witness is not None]
            if witnesses:
                columns[LOSSES] = Column([np.array([witness.loss for witness in witnesses], dtype=np.float64)])
                columns[BATCHES] = Column([np.array([witness.batch for witness in witnesses], dtype=np.int64)])
            accounts = [step.accounts for step in self.steps]
            columns |= _stacked(gradient_tensor, [account.gradients for account in accounts])
            columns |= _stacked(buffer_tensor, [account.buffers for account in accounts])
            for name in dict.fromkeys(name for account in accounts for name in account.remainders):
                there = (account.remainders[name] for account in accounts if name in account.remainders)
                columns[remainder_tensor(name)] = Column([np.stack([column.blocks[0] for column in there])])
        return columns

    def passes(self, layer: str) -> list[tuple[int, Rows]]:
        """Return all backward passes through a layer, each with the number of its step; merged ones as the last."""
        if layer in self.merged:
            return [(self.last_step - 1, self.merged[layer])]
        numbered = enumerate(self.steps, start=self.first_step)
        return [(number, rows) for number, step in numbered for rows in step.rows.get(layer, ())]


def _stacked(tensor: Callable[[str], str], steps: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Return what is kept of each step as one tensor by name, with a row a step; not what has changed its shape."""
    stacked = {}
    for name, column in steps[0].items():
        rows = [of_step[name].blocks[0] for of_step in steps if name in of_step]
        if len(rows) == len(steps) and len({(row.shape, row.dtype) for row in rows}) == 1:
            stacked[tensor(name)] = Column([np.stack(rows)], column.dtype)
    return stacked


def pass_columns(layer: str, passes: list[tuple[int, Rows]]) -> dict[str, Column]:
    """Return what is known of a layer's backward passes where its keys and values are not stored, too."""
    columns = {
        "pass_step": Column([np.array([step for step, _ in passes], dtype=np.int64)]),
        "pass_rows": Column([np.array([_slots(rows) for _, rows in passes], dtype=np.int64)]),
    }
    if any(rows.precision for _, rows in passes):
        columns["pass_precision"] = Column([np.array([rows.precision for _, rows in passes], dtype=np.uint8)])
    if any(rows.extents for _, rows in passes):
        columns["extents"] = Column([np.array([rows.extents for _, rows in passes], dtype=np.int64)])
    return {slot_tensor(layer, name): column for name, column in columns.items()}


def slot_columns(layer: str, passes: list[tuple[int, Rows]], *, sparse: bool = True) -> dict[str, Column]:
    """Return everything about a layer's slots but their keys and tags; large columns block by block, uncopied.

    Args:
        layer: The layer's name.
        passes: What went through it, with the numbers of the steps.
        sparse: Whether values may be stored without their zeros.
    """
    columns = {"factors": Column([np.stack([rows.factors for _, rows in passes])])}
    values = [rows.values for _, rows in passes if rows.values is not None]
    exponents = [rows.value_exponent for _, rows in passes if rows.value_exponent is not None]
    if values:
        joined = neighbours_joined(values, writeable=not sparse)
        without = without_zeros(joined) if sparse else None
        if without is None:
            columns["values"] = Column(joined)
        else:
            bits, entries = without
            columns |= {"value_mask": Column(bits), "values": Column(entries)}
    if exponents:
        columns["value_exponent"] = Column([np.concatenate(exponents)])
    visits = [rows.visits for _, rows in passes if rows.visits is not None]
    if visits:
        columns["visits"] = Column([np.concatenate(visits)])
    return pass_columns(layer, passes) | {slot_tensor(layer, name): column for name, column in columns.items()}


def _slots(rows: Rows) -> int:
    return len(known(rows.keys)) if rows.slots is None else rows.slots


def known(keys: Array | None) -> Array:
    """Return the keys of rows that are to be stored."""
    assert keys is not None
    return keys


def tag_columns(layer: str, tag: str, blocks: list[Array], texts: Texts | None) -> dict[str, Column]:
    """Return a tag's column in the narrowest integers that hold it; strings as their numbers in `texts`.

    Slots without a value have 0 in it, and are told in a column of their own.
    """
    untagged = np.concatenate([np.ma.getmaskarray(block) for block in blocks])
    stored = np.concatenate([texts.encode(block) if texts else np.ma.getdata(block) for block in blocks])
    if untagged.any():
        stored = np.where(untagged, np.zeros((), dtype=stored.dtype), stored)
    columns = {tag_tensor(layer, tag): Column([_narrow(stored) if stored.dtype == np.int64 else stored])}
    if untagged.any():
        columns[tag_tensor(layer, tag, "untagged")] = Column([untagged])
    return columns


class EqualColumns:
    """Columns of tags, of which layers mostly have the same: equal ones are stored once."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.same: dict[str, str] = {}  # name -> that of an equal column
        self._of_tag: dict[str, list[str]] = {}  # names of different ones

    def add(self, tag: str, columns: Mapping[str, Column]) -> None:
        """Add the columns of a tag for one more layer."""
        for name, column in columns.items():
            known = self._of_tag.setdefault(f"{name.partition('/')[0]}/{tag}", [])
            equal = next((other for other in known if _equal(column, self.columns[other])), None)
            if equal is None:
                known.append(name)
                self.columns[name] = column
            else:
                self.same[name] = equal


def _equal(one: Column, other: Column) -> bool:
    """Return whether two columns of one block have the same bytes."""
    a, b = one.blocks[0], other.blocks[0]
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _narrow(whole: Array) -> Array:
    low, high = int(whole.min(initial=0)), int(whole.max(initial=0))
    for dtype in (np.int8, np.int16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return whole.astype(dtype)
    return whole
