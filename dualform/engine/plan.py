"""Carry out plans: every answer that reads slots is folds that are fed from one reading of them.

    plan = Plan(slots, selection, (TopFold(...), TotalFold(...)))
    top, totals = carry_out(plan)                       # here, chapter after chapter
    top, totals = carry_out(plan, executor, parts=4)    # by whoever has `submit`: threads, processes, a cluster

A plan can be pickled. It is split by chapters; each part feeds folds of its own, and the folds of all parts are merged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from dualform.slots import Selection


class Fold(Protocol):
    """Takes a layer's blocks one by one and keeps only what its answer needs.

    The blocks of a part come in order. Merging is associative, and parts may be merged in any order.
    """

    def add(self, block: Any) -> None: ...

    def merge(self, other: Self) -> None:
        """Take over what a fold of the same plan was fed with other chapters."""

    def finish(self) -> Any:
        """Return the answer."""


class Source(Protocol):
    """Anything with chapters to be read: slots, or steps that are replayed from them."""

    splits: bool  # chapters can be read apart, in any order

    def chapters(self, selection: Selection, since: int = 0) -> Sequence[int]: ...

    def stream(self, chapters: Iterable[int], selection: Selection, since: int = 0) -> Iterator[Any]: ...

    def first_step(self, chapter: int) -> int:
        """Return the first step of a chapter: those of several sources with the same steps are read one by one."""


class SupportsSubmit(Protocol):
    """A `concurrent.futures.Executor`, or anything with its `submit`."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any) -> Any:
        """Return something with a `result()`."""


@dataclass(frozen=True)
class Plan:
    """What is read, of which slots, and the empty folds that are fed; from step `since` on."""

    source: Source
    selection: Selection
    folds: tuple[Fold, ...]
    since: int = 0

    def feed(self, chapters: Sequence[int], folds: tuple[Fold, ...]) -> tuple[Fold, ...]:
        """Feed these chapters to folds, and return them."""
        for block in self.source.stream(chapters, self.selection, self.since):
            for fold in folds:
                fold.add(block)
        return folds

    def feed_copy(self, chapters: Sequence[int]) -> tuple[Fold, ...]:
        """Feed some of the chapters to a copy of this plan's folds, and return it."""
        return self.feed(chapters, deepcopy(self.folds))


# Carries out plans of this thread with those of others (together.py); None: each is carried out where it is asked for
set_aside: ContextVar[Callable[[Plan], list[Any]] | None] = ContextVar("set_aside", default=None)


def carry_out(plan: Plan, executor: SupportsSubmit | None = None, parts: int = 1) -> list[Any]:
    """Feed a plan's folds and return their answers.

    Args:
        plan: What to read, and the folds.
        executor: Where parts are read; None: here, in one part.
        parts: Into how many parts the chapters are split, if their source allows it.
    """
    carry_out_later = set_aside.get()
    if carry_out_later is not None:
        return carry_out_later(plan)
    chapters = plan.source.chapters(plan.selection, plan.since)
    if executor is None or not plan.source.splits or parts < 2:
        return [fold.finish() for fold in plan.feed(chapters, plan.folds)]
    size = -(-len(chapters) // parts) or 1
    empty = replace(plan, folds=deepcopy(plan.folds))  # for a part that begins when others are merged already
    futures = [executor.submit(empty.feed_copy, chapters[i : i + size]) for i in range(0, len(chapters), size)]
    folds = plan.folds
    for future in futures:
        for fold, other in zip(folds, future.result(), strict=True):
            fold.merge(other)
    return [fold.finish() for fold in folds]
