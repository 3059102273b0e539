"""Answer several questions in one pass: where slots are made by training again, each pass is a training.

    certificates = together([partial(certify, layer) for layer in layers])

Each call runs until it carries out a plan, and waits there. When all have come so far, their plans are carried out
together, chapter by chapter, and each goes on with its own answers. Calls take turns, in threads of their own: never do
two run at once.
"""

from collections.abc import Callable, Sequence
from threading import Semaphore, Thread
from typing import Any, TypeVar

from dualform.engine.plan import Plan, set_aside
from dualform.store import Run

T = TypeVar("T")


class _Abandoned(BaseException):
    """Ends a call that nobody waits for any more."""


class _Member:
    """A call in a thread of its own, which runs only while `resume` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._go, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._run, daemon=True)
        self.plan: Plan | None = None  # that it waits for
        self._answers: list[Any] | BaseException = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        set_aside.set(self._wait_for)
        try:
            self.result = self._call()
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self.plan, self.ended = None, True
        self._stopped.release()

    def _wait_for(self, plan: Plan) -> list[Any]:
        self.plan = plan
        self._stopped.release()
        self._go.acquire()
        if isinstance(self._answers, BaseException):
            raise self._answers
        return self._answers

    def resume(self, answers: list[Any] | BaseException) -> None:
        """Let it go on until it waits for a plan, or ends."""
        self._answers = answers
        self._go.release()
        self._stopped.acquire()


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls, whose plans are carried out together; raise what the first of them raises."""
    members = [_Member(call) for call in calls]
    try:
        for member in members:
            _go_on(member, [])
        while waiting := [member for member in members if not member.ended]:
            plans = [member.plan for member in waiting if member.plan is not None]
            for member, answers in zip(waiting, carry_out_all(plans), strict=True):
                _go_on(member, answers)
    finally:
        for member in (member for member in members if not member.ended):
            member.resume(_Abandoned())
    return [member.result for member in members]


def in_one_pass(run: Run, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Do the same where slots of a run are made again; where they are read, one call after the other."""
    return [call() for call in calls] if run.replay is None else together(calls)


def _go_on(member: _Member, answers: list[Any]) -> None:
    member.resume(answers)
    if member.error is not None:
        raise member.error


def carry_out_all(plans: Sequence[Plan]) -> list[list[Any]]:
    """Feed the folds of several plans chapter by chapter, and return the answers of each plan."""
    steps: list[tuple[bool, int, int, int, int]] = []
    for number, plan in enumerate(plans):
        chapters = list(plan.source.chapters(plan.selection, plan.since))
        firsts = [plan.source.first_step(chapter) for chapter in chapters]
        backwards = firsts != sorted(firsts)
        order = [-first for first in firsts] if backwards else firsts
        steps += [(backwards, o, number, i, c) for i, (o, c) in enumerate(zip(order, chapters, strict=True))]
    for _, _, number, _, chapter in sorted(steps):
        plans[number].feed([chapter], plans[number].folds)
    return [[fold.finish() for fold in plan.folds] for plan in plans]
