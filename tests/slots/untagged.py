"""Runs whose slots may be without a value of a tag, written by hand: the recorder's part is to know which."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import dualform
from dualform.algebra import RULES
from dualform.store import (
    Column,
    InMemory,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    Parameter,
    Rows,
    RunWriter,
    StepRecord,
    Storage,
    Use,
)

Array = NDArray[Any]
Slot = tuple[Any, ...]  # its tags, in the order of TAGS; None: it has none
KINDS = {"id": "int", "share": "float", "odd": "bool", "colour": "string"}
TAGS = tuple(KINDS)
DTYPES = {"int": np.int64, "float": np.float64, "bool": np.bool_, "string": np.str_}
LONG = "y" * 70  # is stored as others are, but read as an object
LAYER, TABLE = "fc", "table"  # no slot of the second has any tag
LR = 0.5


@dataclass(frozen=True)
class Written:
    """A run, and its slots as lists."""

    memory: dualform.Memory
    steps: list[int]
    tags: list[Slot]
    keys: Tensor  # (slots, 2)
    values: Tensor  # (slots, 3)

    def column(self, tag: str) -> list[Any]:
        return [slot[TAGS.index(tag)] for slot in self.tags]

    def added(self, chosen: Sequence[bool]) -> Tensor:
        """What some slots have added to the weight."""
        which = torch.tensor(chosen, dtype=torch.bool)
        return -LR * self.values[which].mT @ self.keys[which]


def slots() -> st.SearchStrategy[Slot]:
    values = (st.sampled_from([-3, 0, 1, 200]), st.sampled_from([0.0, 0.5, -2.5]), st.booleans())
    colours = st.sampled_from(["", "red", "green", LONG])
    return st.tuples(*(st.none() | value for value in (*values, colours)))


@st.composite
def runs(draw: st.DrawFn) -> Written:
    batches = draw(st.lists(st.lists(slots(), min_size=1, max_size=5), min_size=1, max_size=5))
    return written(batches, draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches))))


def column(kind: str, values: Sequence[Any]) -> Array:
    """A tag's column as it is handed over: masked only if something is missing."""
    blank = DTYPES[kind]().item()
    filled: Array = np.array([blank if value is None else value for value in values], dtype=DTYPES[kind])
    missing = [value is None for value in values]
    return np.ma.array(filled, mask=missing) if any(missing) else filled


def written(batches: Sequence[Sequence[Slot]], sealed: Sequence[bool]) -> Written:
    """Write a run into memory, and open it."""
    backend = InMemory()
    keys, values = write(backend, batches, sealed)
    steps = [step for step, batch in enumerate(batches) for _ in batch]
    return Written(dualform.load(backend), steps, [slot for batch in batches for slot in batch], keys, values)


def write(backend: InMemory, batches: Sequence[Sequence[Slot]], sealed: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """Train two layers by SGD, a batch a step; the second one has a slot a step, without tags.

    Returns the keys and values of the first.
    """
    random = torch.Generator().manual_seed(0)
    layers = tuple(
        Layer(name, "Linear", 2, 3, KeyLayout(2), (Use(Parameter(f"{name}.weight", (3, 2), 0), (0, 2)),))
        for name in (LAYER, TABLE)
    )
    weights = {layer.name: torch.randn(3, 2, generator=random, dtype=torch.float64) for layer in layers}
    optimizers = (Optimizer("SGD", RULES["SGD"].columns),)
    manifest = Manifest("0123456789abcdef", "", "test", Storage("float64"), optimizers, layers)
    writer = RunWriter.begin(backend, manifest, _state(weights), 1 << 20, overwrite=False)
    keys, values = [], []
    for batch, seal in zip(batches, sealed, strict=True):
        passes = {}
        for name, tags in ((TABLE, [(None,) * len(TAGS)]), (LAYER, batch)):
            key, value = (torch.randn(len(tags), width, generator=random, dtype=torch.float64) for width in (2, 3))
            weights[name] = weights[name] - LR * value.mT @ key
            columns = {tag: column(kind, [slot[i] for slot in tags]) for i, (tag, kind) in enumerate(KINDS.items())}
            passes[name] = [Rows(key.numpy(), None, value.numpy(), None, np.ones(1), columns, may_repeat=False)]
        keys.append(key)
        values.append(value)
        ledger = {f"{name}.weight": [1.0, LR, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] for name in weights}
        writer.append(StepRecord(ledger, dict.fromkeys(weights, 0.0), passes), KINDS)
        if seal:
            writer.seal(_state(weights))
    writer.close(_state(weights), "complete")
    return torch.cat(keys), torch.cat(values)


def _state(weights: dict[str, Tensor]) -> dict[str, Column]:
    return {f"parameters/{name}.weight": Column([weight.numpy().copy()]) for name, weight in weights.items()}


def in_order(values: Sequence[Any]) -> list[Any]:
    """Distinct values, or tuples of them, sorted; None last."""

    def place(value: Any) -> Any:
        return tuple(map(place, value)) if isinstance(value, tuple) else (value is None, 0 if value is None else value)

    return sorted(set(values), key=place)


def groups(run: Written, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], list[bool]]]:
    """The groups that occur, in order, each with which slots are in it."""
    rows = list(zip(*(run.column(tag) for tag in by), strict=True))
    for group in in_order(rows):
        yield group, [row == group for row in rows]
