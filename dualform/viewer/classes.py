"""Classes of training slots: combinations of the tags `task` and `label`, numbered, with names for people.

classes = Classes.of(memory, {"mnist": ["0", "1"], "fashion-mnist": ["T-shirt", "Trouser"]})
classes.number("mnist", 1)          # 1
classes.outputs["mnist"]            # names of the model's outputs
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from dualform import Memory
from dualform.strict_json import printable

TASK, LABEL = "task", "label"
_MOST = 200  # beyond which charts of classes say nothing, and weights due to each take too much memory
Row = Mapping[str, Any]
Names = Mapping[str, Sequence[str]]  # of outputs, by task; "" where there are no tasks


@dataclass(frozen=True)
class Class:
    task: str | None
    label: int | str
    name: str


@dataclass(frozen=True)
class Span:
    """A task, when it was trained on, and which classes it has."""

    name: str
    first_step: int
    last_step: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Classes:
    """All classes of a run; none, if it has no labels or too many."""

    by: tuple[str, ...]  # the tags that make a class
    every: tuple[Class, ...]
    tasks: tuple[Span, ...]
    outputs: Names

    @classmethod
    def of(cls, memory: Memory, names: Names) -> "Classes":
        by = tuple(tag for tag in (TASK, LABEL) if memory.tags.get(tag) in ("int", "string"))
        if not memory.layers or LABEL not in by:
            return cls((), (), (), names)
        rows: list[Row] = list(memory.seen(memory.layers[0], by=by).rows())
        if len(rows) > _MOST:
            return cls((), (), (), names)
        if TASK in by:
            rows = _by_task(rows)
        every = tuple(Class(_task(row), row[LABEL], _name(names, _task(row), row[LABEL])) for row in rows)
        return cls(by, every, _spans(rows) if TASK in by else (), names)

    def number(self, task: object, label: object) -> int | None:
        """Of the class with this task, if there are tasks, and this label."""
        return self._numbers.get((str(task) if TASK in self.by else None, label))

    @cached_property
    def _numbers(self) -> dict[tuple[str | None, object], int]:
        return {(one.task, one.label): number for number, one in enumerate(self.every)}

    def of_row(self, row: Row) -> int | None:
        """The class of a row of a table."""
        return self.number(row.get(TASK), row.get(LABEL))


def _task(row: Row) -> str | None:
    return str(row[TASK]) if TASK in row else None


def _name(names: Names, task: str | None, label: int | str) -> str:
    known = names.get(task or "", names.get("", ()))
    return known[label] if isinstance(label, int) and 0 <= label < len(known) else printable(str(label))


def _by_task(rows: Sequence[Row]) -> list[Row]:
    """Task after task, as they were trained on."""
    begun: dict[str | None, int] = {}
    for row in rows:
        begun[_task(row)] = min(row["first_step"], begun.get(_task(row), row["first_step"]))
    return sorted(rows, key=lambda row: (begun[_task(row)], _task(row)))


def _spans(rows: Sequence[Row]) -> tuple[Span, ...]:
    spans = []
    for task, group in groupby(enumerate(rows), key=lambda numbered: str(numbered[1][TASK])):
        numbers, seen = zip(*group, strict=True)
        first, last = min(row["first_step"] for row in seen), max(row["last_step"] for row in seen)
        spans.append(Span(task, first, last, numbers))
    return tuple(spans)


def names_of(about: Mapping[str, Any], given: Sequence[str] | None) -> Names:
    """Names of outputs: those given, or those the run was recorded with, by task or for all."""
    found: Any = list(given) if given else about.get("class_names")
    if _are_names(found):
        return {"": tuple(found)}
    if isinstance(found, dict) and all(_are_names(some) for some in found.values()):
        return {str(task): tuple(some) for task, some in found.items()}
    return {}


def _are_names(found: Any) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(name, str) and name.isprintable() for name in found)
