"""What the model says of an input, and what it said at each stage of its training: `predict`, `history`.

At snapshots a model is there without computing; between them it is summed up from the one before.
"""

import copy
import threading
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from dualform.errors import Refused, listing
from dualform.text import Text
from dualform.viewer import code
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.outputs import next_token_probabilities, probabilities
from dualform.viewer.requests import HistoryRequest, PredictRequest
from dualform.viewer.subject import Subject, subject_of

LIKELIEST = 10
_MOST_STOPS = 60
_MOST_BYTES = 512 << 20  # of models at stops, kept
_FEW, _SMALL = 25, 200 << 20  # stops that make a curve; bytes of a run in which others are quickly summed up
_BETWEEN = 8  # models between stops, kept
_VALUES = 1000  # numbers of an input that are shown


class Predictions:
    """Answers about probabilities; keeps the models of the past that were asked for."""

    def __init__(self, exhibit: Exhibit) -> None:
        self._exhibit = exhibit
        # One of its own: whoever attends watches the exhibit's, and would take other inputs for its queries.
        self._network = copy.deepcopy(exhibit.network)
        self._between = lru_cache(maxsize=_BETWEEN)(self._made)
        self._at_stop = lru_cache(maxsize=None)(self._made)
        self._making = threading.Lock()
        self.stops = _stops(exhibit)

    def predict(self, request: PredictRequest) -> dict[str, Any]:
        subject, step = subject_of(self._exhibit, request.input), request.step
        steps = self._exhibit.memory.steps
        if "predict" in self._exhibit.cannot:  # the input is shown all the same
            unknown = {"predicted": None, "probabilities": None, "step": steps, "note": None}
            return _described(self._exhibit, subject) | unknown | {"python": "\n".join(subject.python)}
        network, name, lines = self._network, "model", list[str]()
        if step is not None and step != steps:
            network, name, lines = self.model_at(step), "as_it_was", code.at_step(step)
        assert network is not None
        lines += code.predicted(name, prompt=subject.token is not None)
        said = said_of(network, subject)
        at = steps if step is None else step
        facts = {"step": at, "note": self._note(at), "python": "\n".join([*subject.python, *lines])}
        return _described(self._exhibit, subject) | said_as(said, self._exhibit.text) | facts

    def history(self, request: HistoryRequest) -> dict[str, Any]:
        subject = subject_of(self._exhibit, request.input)
        if "predict" in self._exhibit.cannot:
            raise Refused(self._exhibit.cannot["predict"])
        if subject.token is not None:
            raise Refused("what a language model said in its training is asked for by step: predict with `step`")
        said = [said_of(self.model_at(step), subject).tolist() for step in self.stops]
        return {
            "steps": self.stops,
            "probabilities": said,
            "python": "\n".join([*subject.python, *code.history(self.stops)]),
        }

    def model_at(self, step: int) -> nn.Module:
        """The model as it was after so many steps."""
        steps = self._exhibit.memory.steps
        if step > steps:
            raise Refused(f"the run has {steps:,} steps, step {step:,} is not among them")
        if "time" in self._exhibit.cannot and step not in self.stops:
            raise Refused(f"{self._exhibit.cannot['time']}; the model is known after steps {listing(self.stops)}")
        with self._making:
            return self._at_stop(step) if step in self.stops else self._between(step)

    def _note(self, step: int) -> str | None:
        """What is not as it was at a step: parameters that were not recorded are known at snapshots only."""
        unrecorded, snapshots = self._exhibit.memory.unrecorded, self._exhibit.memory.summary()["snapshots"]
        if step in snapshots or not unrecorded:
            return None
        last = max(one for one in snapshots if one <= step)
        return f"parameters that were not recorded are those of step {last:,}: {listing(unrecorded, most=5)}"

    def _made(self, step: int) -> nn.Module:
        assert self._network is not None
        return self._exhibit.memory.until(step=step).model(self._network).eval()


def _stops(exhibit: Exhibit) -> list[int]:
    """Steps whose models are kept: snapshots, as many as memory allows, evenly; in small runs some between."""
    summary = exhibit.memory.summary()
    steps: list[int] = summary["snapshots"]
    if exhibit.network is None:
        return steps
    exact = "mute" not in exhibit.cannot and not exhibit.memory.unrecorded
    if len(steps) < _FEW and summary["bytes"] < _SMALL and exact:
        between = torch.linspace(0, exhibit.memory.steps, _FEW).round().long().tolist()
        steps = sorted({*steps, *between})
    size = sum(p.numel() * p.element_size() for p in exhibit.network.parameters())
    most = max(2, min(_MOST_STOPS, _MOST_BYTES // max(size, 1)))
    if len(steps) <= most:
        return steps
    return [steps[round(place)] for place in torch.linspace(0, len(steps) - 1, most).tolist()]


def said_of(network: nn.Module, subject: Subject) -> Tensor:
    """Probabilities of the outputs, or of the next token: (outputs,)."""
    if subject.token is not None:
        return next_token_probabilities(network, subject.row)[0]
    return probabilities(network, subject.row)[0]


def said_as(said: Tensor, text: Text | None, tokens: list[int] | None = None) -> dict[str, Any]:
    """Probabilities as the page gets them: of all outputs; of a vocabulary, of these tokens or else the likeliest."""
    if text is None:
        return {"predicted": int(said.argmax()), "probabilities": said.tolist()}
    shown = said.topk(min(LIKELIEST, len(said))).indices.tolist() if tokens is None else tokens
    return {"expected": [{"token": text.vocabulary[one], "probability": float(said[one])} for one in shown]}


def _described(exhibit: Exhibit, subject: Subject) -> dict[str, Any]:
    if subject.token is not None:
        assert exhibit.text is not None
        return {"tokens": list(subject.tokens), "separator": exhibit.text.separator, "token": subject.token}
    values = None if subject.pixels is not None else subject.row.flatten()[:_VALUES].tolist()
    return {
        "index": subject.index,
        "label": subject.label,
        "class": None if subject.label is None else exhibit.classes.number(subject.task, subject.label),
        "task": subject.task,
        "pixels": subject.pixels,
        "values": values,
    }
