"""Take part in a recording while other processes of the training still have batches, and this one has none.

    handle = follow_joins(wrapper, rank, audit)         # until handle.remove()

In `with model.join()`, a process that runs out of batches takes no more steps, and mirrors what the others send to one
another. So does its recorder, in a thread of its own: it audits the steps of the others, to which it adds no slots.
When all have run out, each has the weights of one of the last ones. The first process keeps the ledger and snapshots of
all, and has to be among these.
"""

from collections.abc import Callable
from threading import Thread
from typing import Any, Protocol

from torch import nn
from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

from dualform.errors import RecordingError


class Audit(Protocol):
    """Audits what waits, with all processes; returns whether all of them have run out of batches."""

    def __call__(self, *, idle: bool, over: bool) -> bool: ...


class JoinHandle:
    """Takes the hook off again."""

    def __init__(self, wrapper: nn.Module) -> None:
        self._wrapper = wrapper

    def remove(self) -> None:
        self._wrapper.__dict__.pop("join_hook", None)


def follow_joins(wrapper: DistributedDataParallel, rank: int, audit: Audit, after: Callable[[], None]) -> JoinHandle:
    """Be told when this process has run out of batches; `after` is called when the weights are those of all again."""

    def join_hook(**options: Any) -> JoinHook:
        return _Joined(DistributedDataParallel.join_hook(wrapper, **options), rank, audit, after)

    wrapper.__dict__["join_hook"] = join_hook  # of this object only, and not as a module's attribute
    return JoinHandle(wrapper)


class _Joined(JoinHook):
    """Does what the wrapper's own hook does, and what the recorder has to."""

    def __init__(self, wrapped: JoinHook, rank: int, audit: Audit, after: Callable[[], None]) -> None:
        self._wrapped, self._rank, self._audit, self._after = wrapped, rank, audit, after
        self._thread: Thread | None = None
        self._failure: BaseException | None = None

    def main_hook(self) -> None:
        """Be called for each forward pass of the others."""
        if self._rank == 0:
            raise RecordingError(
                "process 0 has run out of batches before the others, and keeps the ledger and snapshots of all of "
                "them: give it as many batches as any other"
            )
        if self._thread is None:
            self._thread = Thread(target=self._follow, name="dualform-join", daemon=True)
            self._thread.start()
        self._raise()
        self._wrapped.main_hook()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Be called once all have run out."""
        self._wrapped.post_hook(is_last_joiner)
        if self._thread is None:
            self._audit(idle=False, over=True)
        else:
            self._thread.join()
            self._raise()
        self._after()

    def _follow(self) -> None:
        try:
            while not self._audit(idle=True, over=False):
                pass
        except BaseException as error:
            self._failure = error

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
