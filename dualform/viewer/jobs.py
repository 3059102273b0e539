"""Work in the background that makes later answers quick, or possible: one job after the other, each with its progress.

jobs = Jobs([Job("mute", "summing up", work)])
jobs.run()                  # in a thread of its own
jobs.to_list()
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from dualform.errors import DualformError

Progress = Callable[[float], None]  # is called with the share of the work that is done
Work = Callable[[Progress], Any]


@dataclass
class Job:
    """Work that is done, has failed for a reason, or is still to be done.

    Args:
        name: What requests call it.
        what: What it does, for people.
        work: Does it.
        share: How much of it is done; None where that is not known.
        result: What the work has returned.
    """

    name: str
    what: str
    work: Work
    share: float | None = None
    done: bool = False
    failed: str | None = None
    result: Any = None

    def run(self) -> None:
        """Do the work; a failure is noted, not raised."""
        try:
            self.result = self.work(partial(setattr, self, "share"))
        except DualformError as error:
            self.failed = str(error)
        except Exception as error:  # a fault of ours: the page goes on without it, and says so
            print(f"dualform: {self.what} failed: {type(error).__name__}: {error}", file=sys.stderr)
            self.failed = "this failed unexpectedly; the terminal has the reason"
        self.done = True

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "what": self.what, "share": self.share, "done": self.done, "failed": self.failed}


class Jobs:
    """Jobs that are done in order."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self._stopped = False
        self._over = Event()

    def run(self, progress: Callable[[str], None] = lambda what: None) -> None:
        """Do all jobs; `progress` is called with what each does as its turn comes."""
        for job in self._jobs:
            if not self._stopped:
                progress(job.what)
                job.run()
        self._over.set()

    def wait(self) -> None:
        """Wait until all that will be done is done, in whichever thread."""
        self._over.wait()

    def stop(self) -> None:
        """Leave out the jobs that have not begun."""
        self._stopped = True

    def result(self, name: str) -> Any:
        """Return what a job has returned; None until it is done."""
        return next(job.result for job in self._jobs if job.name == name)

    def to_list(self) -> list[dict[str, Any]]:
        return [job.to_dict() for job in self._jobs]
