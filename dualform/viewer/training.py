"""Training again without the muted examples: `train` begins it, `retrained` says what the model of it says.

What makes a training repeatable is set for the whole process, so there is one at a time, in a thread of its own, and
requests go on being answered. The models of the last few trainings are kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from torch import nn

from dualform.errors import Refused
from dualform.viewer import code
from dualform.viewer.jobs import Job, Progress
from dualform.viewer.muting import Muting
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.predictions import prediction, probabilities_for
from dualform.viewer.requests import MuteRequest, MuteSet, RetrainedRequest, TrainRequest
from dualform.viewer.resolved_input import resolve_input

JOB = "train"
_MAX_MODELS = 8  # that are kept
_NO_EXAMPLES = "a stretch of time or of a text is no set of examples: it can be muted, but not left out of a training"

Key = frozenset[MuteSet]


class _Stopped(BaseException):
    """Somebody has stopped the training."""


@dataclass(frozen=True, eq=False)
class _Retrained:
    """The model that a training has made."""

    model: nn.Module
    steps: int
    seconds: float


@dataclass(eq=False)
class _Attempt:
    """A training that is under way, or has ended."""

    sets: tuple[MuteSet, ...]
    stopped: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=monotonic)
    first_step_at: float = 0.0
    step: int = 0
    steps: int = 0  # 0: it is not known yet where training begins
    job: Job = field(init=False)

    def follow(self, step: int, steps: int) -> None:
        """Take notice of a step; end the training if somebody has stopped it."""
        if self.stopped.is_set():
            raise _Stopped
        self.first_step_at = self.first_step_at or monotonic()
        self.step, self.steps, self.job.share = step, steps, step / steps

    def to_dict(self) -> dict[str, Any]:
        taken = self.step - 1  # since the first one was timed
        seconds = (monotonic() - self.first_step_at) / taken * (self.steps - self.step) if taken > 0 else None
        sets = [each.to_dict() for each in self.sets]
        return {"mute": sets, "step": self.step, "steps": self.steps, "seconds": seconds, "failed": self.job.failed}


class Training:
    """Trains a run again, and answers about the models that were made."""

    def __init__(self, run: OpenedRun, muting: Muting) -> None:
        self._run, self._muting = run, muting
        self._retrained: OrderedDict[Key, _Retrained] = OrderedDict()
        self._attempt: _Attempt | None = None
        self._seconds: float | None = None
        self._lock = threading.Lock()

    def measure(self, progress: Progress) -> None:
        """Measure about how long a training takes."""
        self._seconds = self._run.memory.seconds_to_retrain()

    def train(self, request: TrainRequest) -> dict[str, Any]:
        """Begin to train without the examples of these sets, or stop that."""
        if self._run.cannot_train is not None:
            raise Refused(self._run.cannot_train)
        key = _key_of(request.mute)
        with self._lock:
            running = self._running()
            if request.stop:
                if running is not None and _key_of(running.sets) == key:
                    running.stopped.set()
            elif running is not None and _key_of(running.sets) != key:
                raise Refused("there is one training at a time, and another is under way: stop it, or wait for its end")
            elif running is None and key not in self._retrained:
                self._attempt = _Attempt(request.mute)
                self._attempt.job = Job(JOB, "training again without what is muted", partial(self._work, self._attempt))
                threading.Thread(target=self._attempt.job.run, name="dualform-train", daemon=True).start()
        return {"training": self.to_dict()}

    def _work(self, attempt: _Attempt, progress: Progress) -> None:
        without = [dict(each.tags) for each in attempt.sets]
        try:
            model = self._run.memory.retrain(without=without, progress=attempt.follow)
        except _Stopped:
            return
        made = _Retrained(model, attempt.steps, monotonic() - attempt.begun)
        with self._lock:
            self._retrained[_key_of(attempt.sets)] = made
            while len(self._retrained) > _MAX_MODELS:
                self._retrained.popitem(last=False)

    def _running(self) -> _Attempt | None:
        attempt = self._attempt
        return None if attempt is None or attempt.job.done else attempt

    def stop(self) -> None:
        """Stop what is under way, after the step that is being taken."""
        if self._attempt is not None:
            self._attempt.stopped.set()

    # What is told of it

    def jobs(self) -> list[dict[str, Any]]:
        """Describe the training that is under way, as a job in the background."""
        running = self._running()
        return [] if running is None else [running.job.to_dict()]

    def to_dict(self) -> dict[str, Any] | None:
        """Describe what was trained and what is being trained; None where nothing can be."""
        if self._run.cannot_train is not None:
            return None
        attempt = self._attempt
        shown = attempt is not None and (attempt.job.failed is not None or not attempt.job.done)
        return {
            "seconds": self._seconds,
            "now": attempt.to_dict() if attempt is not None and shown else None,
            "retrained": [[each.to_dict() for each in key] for key in list(self._retrained)],
        }

    def retrained(self, request: RetrainedRequest) -> dict[str, Any]:
        """Say what the model says before, with these sets muted, and trained again without them."""
        resolved, text, key = resolve_input(self._run, request.input), self._run.text, _key_of(request.mute)
        made, running = self._retrained.get(key), self._running()
        if made is None and running is not None and _key_of(running.sets) == key:
            raise Refused(running.job.what, status=503, job=JOB)
        if made is None:
            raise Refused("the run was not trained again without these examples: `train` begins that")
        answer = self._muting.mute(MuteRequest(request.input, request.mute))
        tokens = None
        if text is not None:  # the same ones as before and after muting
            tokens = [text.vocabulary.index(entry["token"]) for entry in answer["before"]["expected"]]
        lines = [*resolved.python, *code.muted(request.mute), *code.retrained(request.mute)]
        lines += code.predicted("again", prompt=resolved.token is not None)
        return {
            "before": answer["before"],
            "muted": answer["after"],
            "again": prediction(probabilities_for(made.model, resolved), text, tokens),
            "steps": made.steps,
            "seconds": made.seconds,
            "python": "\n".join(lines),
        }


def _key_of(sets: Sequence[MuteSet]) -> Key:
    """Return what stands for the examples in these sets, in whatever order; raises unless they are sets of examples."""
    if not sets:
        raise Refused("there is nothing to train without: say which examples")
    if any(each.steps is not None or each.positions is not None for each in sets):
        raise Refused(_NO_EXAMPLES)
    return frozenset(
        MuteSet(tuple((name, tuple(sorted({*values}, key=repr))) for name, values in each.tags)) for each in sets
    )
