"""Training examples whose label is probably wrong, the most suspect first: `suspects`.

Going through the visits takes a moment where slots are stored, and a training where they are made again. So it is done
once, in a thread of its own, when somebody first asks, and kept.
"""

from threading import Lock, Thread
from typing import Any

from dualform import Table
from dualform.errors import DualformError, Refused
from dualform.viewer import code
from dualform.viewer.classes import TASK
from dualform.viewer.jobs import Job, Progress
from dualform.viewer.opened_run import POSITION, OpenedRun
from dualform.viewer.requests import SuspectsRequest

JOB = "suspects"
_PATIENCE_SECONDS = 2.0  # in which most runs are gone through: an answer saves the page asking again
_FACTS = ("score", "suggested", "probability", "suggested_probability", "visits")
_ID = "id"


class Suspects:
    """Answers about suspect labels. `cannot` is why there are none to tell of, as far as that is known."""

    def __init__(self, run: OpenedRun) -> None:
        self._run, self.cannot = run, _why_not(run)
        self._job = Job(JOB, "going through the visits", self._work)
        self._thread = Thread(target=self._job.run, name="dualform-suspects", daemon=True)
        self._begun, self._lock = False, Lock()

    @property
    def done(self) -> bool:
        """Whether an answer needs no more than what is kept."""
        return self._job.done or self.cannot is not None

    def jobs(self) -> list[dict[str, Any]]:
        """Describe the going through the visits, while it is under way."""
        return [self._job.to_dict()] if self._begun and not self._job.done else []

    def answer(self, request: SuspectsRequest) -> dict[str, Any]:
        """List some of the suspects."""
        table, end = self._table(), request.start + request.count
        listed = Table({name: column[request.start : end] for name, column in table.as_arrays().items()})
        return {
            "total": len(table),
            "suspects": [self._suspect(row) for row in listed.rows()],
            "python": code.loaded(self._run, f"suspects = memory.suspects({end})"),
        }

    def _table(self) -> Table:
        """Return all examples, or refuse: there is nothing to tell, or not yet."""
        if self.cannot is not None:
            raise Refused(self.cannot)
        with self._lock:
            is_first, self._begun = not self._begun, True
            if is_first:
                self._thread.start()
        if is_first:
            self._thread.join(_PATIENCE_SECONDS)
        if not self._job.done:
            raise Refused(self._job.what, status=503, job=JOB)
        if self._job.failed is not None:
            raise Refused(self._job.failed)
        table: Table = self._job.result
        return table

    def _work(self, progress: Progress) -> Table:
        layers = self._run.memory.summary()["layers"].values()
        try:
            return self._run.memory.suspects(max(layer["slots"] for layer in layers))  # no fewer than examples
        except DualformError as error:
            self.cannot = str(error)
            raise

    def _suspect(self, row: dict[str, Any]) -> dict[str, Any]:
        """Describe an example. Its label and what is suggested are numbers of the model's outputs."""
        task = None if row.get(TASK) is None else str(row[TASK])
        pictures = self._run.pictures
        return {
            "id": row[_ID],
            "task": task,
            "label": row["label"],
            "class": self._run.classes.number(task, row["label"]),
            **{name: row[name] for name in _FACTS},
            "pixels": None if pictures is None else pictures.training(row[_ID]),
            "tags": {name: value for name, value in row.items() if name not in (_ID, "label", *_FACTS)},
        }


def _why_not(run: OpenedRun) -> str | None:
    """Return why a run has no suspects, as far as that can be told without reading it."""
    memory = run.memory
    if run.text is not None or POSITION in memory.tags:
        return "suspects are for classifiers: the examples of a language model have a label at every token"
    if not memory.summary()["storage"]["values"]:
        return "this run holds keys only: what was said of its training examples is not known"
    if not memory.steps or not memory.layers:
        return "no step was recorded"
    if _ID not in memory.tags:
        return f"examples are told apart by their tag {_ID!r}: record with recorder.tag({_ID}=...)"
    return None
