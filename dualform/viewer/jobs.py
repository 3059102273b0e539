"""Work in the background that makes later answers quick, or possible: one job after the other, each with its progress.

jobs = Jobs([Job("mute", "summing up", work)])
jobs.run()                  # in a thread of its own
jobs.to_list()
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from dualform.errors import DualformError

Work = Callable[[Callable[[float], None]], None]  # is given whom to tell its share


@dataclass
class Job:
    """Done, failed for a reason, or still to be done: then `share` says how far it is, if that is known."""

    name: str
    what: str
    work: Work
    share: float | None = None
    done: bool = False
    failed: str | None = None

    def run(self) -> None:
        try:
            self.work(self._tell)
        except DualformError as error:
            self.failed = str(error)
        except Exception as error:  # a fault of ours: the page goes on without it, and says so
            print(f"dualform: {self.what} failed: {type(error).__name__}: {error}", file=sys.stderr)
            self.failed = "this failed unexpectedly; the terminal has the reason"
        self.done = True

    def _tell(self, share: float) -> None:
        self.share = share


class Jobs:
    """Jobs in order. `stop` leaves out those not begun."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self._stopped = False
        self._over = Event()

    def run(self, told: Callable[[str], None] = lambda what: None) -> None:
        """All of them; `told` is called with what each is about as its turn comes."""
        for job in self._jobs:
            if not self._stopped:
                told(job.what)
                job.run()
        self._over.set()

    def wait(self) -> None:
        """Until all that will be done is done, in whichever thread."""
        self._over.wait()

    def stop(self) -> None:
        self._stopped = True

    def to_list(self) -> list[dict[str, Any]]:
        return [
            {"name": job.name, "what": job.what, "share": job.share, "done": job.done, "failed": job.failed}
            for job in self._jobs
        ]
