"""Classes of training slots: combinations of the tags `task` and `label`, numbered, with names for people.

classes = Classes.of(memory, {"mnist": ["0", "1"], "fashion-mnist": ["T-shirt", "Trouser"]})
classes.number("mnist", 1)          # 1
classes.outputs["mnist"]            # names of the model's outputs
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dualform import Memory
from dualform.strict_json import printable

TASK, LABEL = "task", "label"
_MAX_CLASSES = 200  # beyond which charts of classes say nothing, and weights due to each take too much memory
Row = Mapping[str, Any]
Names = Mapping[str, Sequence[str]]  # of outputs, by task; "" where there are no tasks


@dataclass(frozen=True)
class Class:
    task: str | None
    label: int | str
    name: str


@dataclass(frozen=True)
class TaskSpan:
    """A task, when it was trained on, and the numbers of its classes."""

    name: str
    first_step: int
    last_step: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Classes:
    """All classes of a run, numbered; none, if it has no labels or too many."""

    by: tuple[str, ...]  # the tags that make a class
    entries: tuple[Class, ...]
    tasks: tuple[TaskSpan, ...]
    outputs: Names

    @classmethod
    def of(cls, memory: Memory, names: Names) -> "Classes":
        """Find the classes of a run: task after task, as they were trained on."""
        by = tuple(tag for tag in (TASK, LABEL) if memory.tags.get(tag) in ("int", "string"))
        if not memory.layers or LABEL not in by:
            return cls((), (), (), names)
        rows = _rows_with_classes(memory, by)
        if len(rows) > _MAX_CLASSES:
            return cls((), (), (), names)
        entries, tasks = list[Class](), list[TaskSpan]()
        for task, of_task in _rows_by_task(rows).items():
            numbers = tuple(range(len(entries), len(entries) + len(of_task)))
            known = names.get(task or "", names.get("", ()))
            for label in (row[LABEL] for row in of_task):
                named = isinstance(label, int) and 0 <= label < len(known)
                entries.append(Class(task, label, known[label] if named else printable(str(label))))
            if task is not None:
                first, last = min(row["first_step"] for row in of_task), max(row["last_step"] for row in of_task)
                tasks.append(TaskSpan(task, first, last, numbers))
        return cls(by, tuple(entries), tuple(tasks), names)

    def number(self, task: object, label: object) -> int | None:
        """Return the number of the class with this task, if there are tasks, and this label."""
        if TASK in self.by and task is None:
            return None
        return self._numbers.get((str(task) if TASK in self.by else None, label))

    @cached_property
    def _numbers(self) -> dict[tuple[str | None, object], int]:
        return {(entry.task, entry.label): number for number, entry in enumerate(self.entries)}

    def of_row(self, row: Row) -> int | None:
        """Return the number of the class of a row of a table."""
        return self.number(row.get(TASK), row.get(LABEL))


def _rows_with_classes(memory: Memory, by: tuple[str, ...]) -> list[Row]:
    """Count the slots of each class in the first layer that has any: slots without a task or label have no class."""
    for layer in memory.layers:
        rows = [row for row in memory.visits(layer, by=by).rows() if None not in (row[name] for name in by)]
        if rows:
            return list[Row](rows)
    return []


def _rows_by_task(rows: Sequence[Row]) -> dict[str | None, list[Row]]:
    """Group rows by task, as tasks were trained on; None where there are no tasks."""
    by_task: dict[str | None, list[Row]] = {}
    for row in rows:
        by_task.setdefault(str(row[TASK]) if TASK in row else None, []).append(row)
    first_steps = {task: min(row["first_step"] for row in of_task) for task, of_task in by_task.items()}
    return {task: by_task[task] for task in sorted(by_task, key=lambda task: (first_steps[task], task or ""))}


def output_names(about: Mapping[str, Any], chosen: Sequence[str] | None) -> Names:
    """Return the names of outputs: those the user chose, or those the run was recorded with, by task or for all."""
    names: Any = list(chosen) if chosen else about.get("class_names")
    if _are_names(names):
        return {"": tuple(names)}
    if isinstance(names, dict) and all(_are_names(of_task) for of_task in names.values()):
        return {str(task): tuple(of_task) for task, of_task in names.items()}
    return {}


def _are_names(content: Any) -> bool:
    return isinstance(content, list | tuple) and all(isinstance(name, str) and name.isprintable() for name in content)
