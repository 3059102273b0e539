"""Answers to everything that the page requests, computed in threads.

    api = Api(open_run("runs/mnist"))
    api.submit("spotlight", {"input": {"index": 3}, "layer": "output"}).result()
    api.close()

Requests wait for others of their kind, in a thread each: what is there already, what reads keys, what reads slots. So
memory stays within what one of each needs, and who mutes a stretch of time does not stop who looks around.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import Any

from dualform.viewer import facts, listing, passages, requests
from dualform.viewer.accuracy import accuracies
from dualform.viewer.jobs import Job, Jobs
from dualform.viewer.muting import Muting
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.predictions import Predictions
from dualform.viewer.requests import REQUESTS, Request, parse_request
from dualform.viewer.spotlights import Spotlights
from dualform.viewer.suspects import Suspects
from dualform.viewer.training import Training

Answer = dict[str, Any]


class Api:
    """Answers the requests about one run.

    Args:
        run: The run.
        prepare: Whether jobs in the background begin at once.
    """

    names = tuple(REQUESTS)

    def __init__(self, run: OpenedRun, *, prepare: bool = True) -> None:
        self.run = run
        self._predictions, self._spotlights = Predictions(run), Spotlights(run)
        self._muting = Muting(run)
        self._training = Training(run, self._muting)
        self._suspects = Suspects(run)
        self._workers = {kind: ThreadPoolExecutor(1, f"dualform-{kind}") for kind in ("light", "keys", "slots")}
        measure = partial(accuracies, run, self._predictions)
        timing = [Job("timing", "timing some steps of the training", self._training.measure)]
        self.jobs = Jobs([
            Job("spotlight", "reading the keys of each layer", self._spotlights.warm_up),
            Job("mute", "summing up the weights due to each class", self._muting.prepare),
            *(timing if run.cannot_train is None else []),
            Job("accuracy", "testing the model as it was at each snapshot", measure),
            Job("certificate", "measuring how exact the run is", partial(facts.certificate, run)),
        ])  # fmt: skip
        if prepare:
            Thread(target=self.jobs.run, name="dualform-jobs", daemon=True).start()

    @property
    def stops(self) -> list[int]:
        """Steps at which the model is known without computing."""
        return self._predictions.stops

    def answer(self, request: Request) -> Answer:
        """Answer a request in this thread."""
        match request:
            case requests.RunRequest():
                return facts.answer(self.run, self._spotlights.per, self._suspects.cannot)
            case requests.JobsRequest():
                results = {name: self.jobs.result(name) for name in ("certificate", "accuracy")}
                jobs = [*self.jobs.to_list(), *self._suspects.jobs(), *self._training.jobs()]
                return {"jobs": jobs, **results, "training": self._training.to_dict()}
            case requests.InputsRequest():
                return listing.answer(self.run, request)
            case requests.PredictRequest():
                return self._predictions.predict(request)
            case requests.HistoryRequest():
                return self._predictions.history(request)
            case requests.SpotlightRequest():
                return self._spotlights.spotlight(request)
            case requests.MuteRequest():
                return self._muting.mute(request)
            case requests.TrainRequest():
                return self._training.train(request)
            case requests.RetrainedRequest():
                return self._training.retrained(request)
            case requests.PassagesRequest():
                return passages.answer(self.run, request)
            case requests.SuspectsRequest():
                return self._suspects.answer(request)
        raise TypeError(f"{type(request).__name__} has no answer")

    def submit(self, name: str, body: object) -> Future[Answer]:
        """Answer the request of this name and body in the thread of its kind; a bad request is an error at once."""
        done: Future[Answer] = Future()
        try:
            match request := parse_request(name, body):
                case requests.JobsRequest() | requests.TrainRequest():  # while everything else waits
                    done.set_result(self.answer(request))
                    return done
                case requests.SpotlightRequest() | requests.PassagesRequest():
                    worker = self._workers["keys"]
                case requests.PredictRequest(step=step) if step is not None and step not in self.stops:
                    worker = self._workers["slots"]
                case requests.MuteRequest() | requests.RetrainedRequest() if self._muting.reads_slots(request.mute):
                    worker = self._workers["slots"]
                case requests.SuspectsRequest() if not self._suspects.done:
                    worker = self._workers["slots"]
                case _:
                    worker = self._workers["light"]
            return worker.submit(self.answer, request)
        except Exception as error:
            done.set_exception(error)
            return done

    def close(self) -> None:
        """Answer nothing more. What is being computed goes on to its end, unheard."""
        self.jobs.stop()
        self._training.stop()
        for worker in self._workers.values():
            worker.shutdown(wait=False, cancel_futures=True)
