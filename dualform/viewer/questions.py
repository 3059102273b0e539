"""Everything the page asks, by name, answered in threads.

    questions = Questions(open_exhibit("runs/mnist"))
    questions.submit("spotlight", {"input": {"index": 3}, "layer": "output"}).result()
    questions.close()

Questions wait for others of their kind, in a thread each: what is there already, what reads keys, what reads slots. So
memory stays within what one of each needs, and who mutes a stretch of time does not stop who looks around.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any

from dualform.errors import Refused, UnknownName
from dualform.viewer import code, facts, listing, passages
from dualform.viewer.accuracy import accuracies
from dualform.viewer.asked import Asked
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.jobs import Job, Jobs
from dualform.viewer.muting import Muting
from dualform.viewer.predictions import Predictions
from dualform.viewer.spotlights import Spotlights

__all__ = ["Questions", "Refused"]

Answer = dict[str, Any]

# What entries are where the page leaves them out.
_USUAL: dict[str, dict[str, Any]] = {
    "run": {},
    "jobs": {},
    "inputs": {"start": 0, "count": 60, "class": None, "outcome": None, "search": ""},
    "predict": {"step": None},
    "history": {},
    "spotlight": {"per": None, "top": 12, "curve": 500},
    "mute": {},
    "passages": {"summed": True, "most": 5},
}


class Questions:
    """Answers of one exhibit. Jobs in the background begin at once, unless told otherwise."""

    names = tuple(_USUAL)

    def __init__(self, exhibit: Exhibit, *, prepare: bool = True) -> None:
        self.exhibit = exhibit
        self._predictions, self._spotlights = Predictions(exhibit), Spotlights(exhibit)
        self._muting = Muting(exhibit)
        self._accuracy: Answer | None = None
        self._certificate: Answer | None = None
        self._workers = {kind: ThreadPoolExecutor(1, f"dualform-{kind}") for kind in ("light", "keys", "slots")}
        self._answers: dict[str, Callable[[Asked], Answer]] = {
            "run": self._run,
            "jobs": self._jobs_told,
            "inputs": lambda asked: listing.answer(exhibit, asked),
            "predict": self._predictions.predict,
            "history": self._predictions.history,
            "spotlight": self._spotlights.spotlight,
            "mute": self._muting.mute,
            "passages": lambda asked: passages.answer(exhibit, asked),
        }
        self.jobs = Jobs(self._planned())
        self._preparing = Thread(target=self.jobs.run, name="dualform-jobs", daemon=True)
        if prepare:
            self._preparing.start()

    @property
    def stops(self) -> list[int]:
        """Steps at which the model is known without computing."""
        return self._predictions.stops

    def ask(self, name: str, body: object) -> Answer:
        """The answer, in this thread."""
        if name not in self._answers:
            raise UnknownName("question", name, self.names)
        return self._answers[name](Asked(body, name, _USUAL[name]))

    def submit(self, name: str, body: object) -> Future[Answer]:
        """The answer to come."""
        if name == "jobs":  # is asked often while everything else waits
            return _at_once(lambda: self.ask(name, body))
        return self._workers[self._kind(name, body)].submit(self.ask, name, body)

    def close(self) -> None:
        """Answer nothing more. What is being computed goes on to its end, unheard."""
        self.jobs.stop()
        for worker in self._workers.values():
            worker.shutdown(wait=False, cancel_futures=True)

    def _kind(self, name: str, body: object) -> str:
        """What has to be read for an answer."""
        if name in ("spotlight", "passages"):
            return "keys"
        step = body.get("step") if isinstance(body, dict) else None
        between = name == "predict" and step is not None and step not in self.stops
        return "slots" if between or (name == "mute" and not self._muting.is_quick(body)) else "light"

    def _run(self, asked: Asked) -> Answer:
        asked.end()
        return facts.answer(self.exhibit, self._spotlights.per)

    def _jobs_told(self, asked: Asked) -> Answer:
        asked.end()
        return {"jobs": self.jobs.to_list(), "certificate": self._certificate, "accuracy": self._accuracy}

    def _planned(self) -> list[Job]:
        layers = self.exhibit.memory.layers

        def mute(tell: Callable[[float], None]) -> None:
            self._muting.prepare(lambda layer: tell(layers.index(layer) / len(layers)))

        def certify(tell: Callable[[float], None]) -> None:
            found = self.exhibit.memory.verify(lambda layer: tell(layers.index(layer) / len(layers)))
            self._certificate = found.to_dict() | {"python": code.loaded(self.exhibit, "print(memory.verify())")}

        def measure(tell: Callable[[float], None]) -> None:
            self._accuracy = accuracies(self.exhibit, self._predictions, tell)

        return [
            Job("spotlight", "reading the keys of each layer", self._spotlights.warm),
            Job("mute", "summing up the weights due to each class", mute),
            Job("accuracy", "testing the model as it was at each snapshot", measure),
            Job("certificate", "measuring how exact the run is", certify),
        ]


def _at_once(answer: Callable[[], Answer]) -> Future[Answer]:
    future: Future[Answer] = Future()
    try:
        future.set_result(answer())
    except Exception as error:
        future.set_exception(error)
    return future
