"""Select the slots a question is about: those before a step, and those whose tags fit."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import NotRecorded, QueryError, UnknownName
from dualform.slots.tag_values import TagValues
from dualform.store import Run, Shard

Array = NDArray[Any]
Mask = NDArray[np.bool_]

_NAN = object()


@dataclass(frozen=True)
class Condition:
    """Slots where every tag has one of the given values, or, inverted, all other slots. None: they have no value."""

    values: Mapping[str, tuple[Any, ...]]
    inverted: bool = False

    def mask(self, shard: Shard, layer: str, numbers: Mapping[str, Callable[[], Array]], slots: int) -> Mask:
        mask = np.ones(slots, dtype=bool)
        for name, wanted in self.values.items():
            if name in numbers:
                mask &= _isin(numbers[name](), wanted)
            else:
                mask &= _has_tag(shard, layer, name, wanted)
        return ~mask if self.inverted else mask


def _has_tag(shard: Shard, layer: str, tag: str, wanted: tuple[Any, ...]) -> Mask:
    """Return which of a shard's slots have one of these values of a tag."""
    values = tuple(value for value in wanted if value is not None)
    if shard.info.tags[tag] == "string":
        values = tuple(np.flatnonzero(_isin(shard.strings(tag), values)))
    column, untagged = shard.tag(layer, tag)
    mask = _isin(column, values)
    if untagged is None:
        return mask
    return mask | untagged if None in wanted else mask & ~untagged


def _isin(column: Array, wanted: tuple[Any, ...]) -> Mask:
    """Return which entries are among those wanted, which are of the column's own kind: so none is rounded."""
    if not wanted:
        return np.zeros(len(column), dtype=bool)
    mask: Mask = np.isin(column, np.array(wanted, dtype=object if column.dtype == object else None))
    return mask | np.isnan(column) if any(value != value for value in wanted) else mask


@dataclass(frozen=True)
class Selection:
    """The slots of the first `until` steps that meet all conditions."""

    until: int
    conditions: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        """Describe it: `first 100 steps, task in ('mnist',), not (label in (3, 5))`."""
        parts = [f"first {self.until:,} steps"]
        for condition in self.conditions:
            words = " and ".join(f"{name} in {values}" for name, values in condition.values.items())
            parts.append(f"not ({words})" if condition.inverted else words)
        return ", ".join(parts)

    def narrowed(self, condition: Condition) -> "Selection":
        return replace(self, conditions=(*self.conditions, condition))

    def mask(self, shard: Shard, layer: str, steps: Array, slots: Callable[[], Array]) -> Mask:
        """Return which of a shard's slots are selected, given the step of each, and what returns the number of each."""
        mask = steps < self.until
        for condition in self.conditions:
            mask &= condition.mask(shard, layer, {"step": lambda: steps, "slot": slots}, len(steps))
        return mask


def condition(run: Run, wanted: Mapping[str, Any], inverted: bool) -> Condition:
    """Make a condition of names and values that the run has; an unknown one raises and lists the known."""
    values = {}
    for name, value in wanted.items():
        if name in ("step", "slot"):
            if run.manifest.storage.merge:
                raise NotRecorded(f"a merged memory has no single {name}s; choose by {run.manifest.storage.merge!r}")
            values[name] = tuple(_whole_number(entry, name) for entry in _listed(value))
        elif name not in run.tags:
            raise UnknownName("tag", name, [*run.tags, "step", "slot"])
        else:
            values[name] = _known(run, name, _listed(value))
    return Condition(values, inverted)


def _known(run: Run, tag: str, wanted: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a tag that equal those wanted: a whole number, if that is what the tag holds."""
    listed = [value for layer in run.layers for value in TagValues.of(run, layer, tag).to_list()]
    known = {_as_key(value): value for value in listed}
    for value in wanted:
        if not isinstance(value, Hashable):
            raise QueryError(f"tag {tag!r} is compared with a value or a list of them, not {value!r} in a list")
        if _as_key(value) not in known:
            raise UnknownName(f"value of tag {tag!r}:", value, sorted(known.values(), key=lambda v: (v is None, v)))
    return tuple(known[_as_key(value)] for value in wanted)


def _as_key(value: Any) -> Any:
    """Return what stands for a value in a dict: NaN equals nothing, not even itself."""
    return _NAN if isinstance(value, float | np.floating) and value != value else value


def _whole_number(value: Any, name: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise QueryError(f"{name} is a whole number, or a list of them, not {value!r}") from None


def _listed(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor | np.ndarray):
        return tuple(value.reshape(-1).tolist())
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return (value,)
    return tuple(value)
