"""What the model says of an input, and what it said at each stage of its training: `predict`, `history`.

At snapshots a model is there without computing; between them it is summed up from the one before.
"""

import copy
import threading
import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from dualform.errors import Refused, listing
from dualform.text import Text
from dualform.viewer import code
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.outputs import class_probabilities, token_probabilities
from dualform.viewer.requests import HistoryRequest, PredictRequest
from dualform.viewer.resolved_input import ResolvedInput, resolve_input

LIKELIEST_TOKENS = 10
_MAX_STOPS = 60
_MAX_STOP_BYTES = 512 << 20  # of models at stops, which are kept
_CURVE_STOPS = 25  # that make a curve
_SMALL_RUN_BYTES = 200 << 20  # of a run in which stops between snapshots are quickly summed up
_MODELS_BETWEEN = 8  # stops, which are kept
_SHOWN_VALUES = 1000  # of an input


class Predictions:
    """Answers about probabilities; keeps the models of the past that were asked for."""

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        # One of its own: whoever attends watches the run's, and would take other inputs for its queries.
        self._network = copy.deepcopy(run.network)
        self._between_stops = lru_cache(maxsize=_MODELS_BETWEEN)(self._assemble)
        self._at_stop = lru_cache(maxsize=None)(self._assemble)
        self._assembling = threading.Lock()
        self.stops = _choose_stops(run)

    def predict(self, request: PredictRequest) -> dict[str, Any]:
        """Say what the model says, or said after a step."""
        resolved, steps = resolve_input(self._run, request.input), self._run.memory.steps
        if "predict" in self._run.cannot:  # the input is shown all the same
            unknown = {"predicted": None, "probabilities": None, "step": steps, "note": None}
            return _describe(self._run, resolved) | unknown | {"python": "\n".join(resolved.python)}
        network, model, lines = self._network, "model", list[str]()
        step = steps if request.step is None else request.step
        if step != steps:
            network, model, lines = self.model_at(step), "as_it_was", code.at_step(step)
        assert network is not None
        lines += code.predicted(model, prompt=resolved.token is not None)
        note = self._run.memory.until(step).note
        return (
            _describe(self._run, resolved)
            | prediction(probabilities_for(network, resolved), self._run.text)
            | {"step": step, "note": note, "python": "\n".join([*resolved.python, *lines])}
        )

    def history(self, request: HistoryRequest) -> dict[str, Any]:
        """Say what the model said at each stop."""
        resolved = resolve_input(self._run, request.input)
        if "predict" in self._run.cannot:
            raise Refused(self._run.cannot["predict"])
        if resolved.token is not None:
            raise Refused("what a language model said in its training is asked for by step: predict with `step`")
        return {
            "steps": self.stops,
            "probabilities": [probabilities_for(self.model_at(step), resolved).tolist() for step in self.stops],
            "python": "\n".join([*resolved.python, *code.history(self.stops)]),
        }

    def model_at(self, step: int) -> nn.Module:
        """Return the model as it was after so many steps."""
        steps = self._run.memory.steps
        if step > steps:
            raise Refused(f"the run has {steps:,} steps, step {step:,} is not among them")
        if "time" in self._run.cannot and step not in self.stops:
            raise Refused(f"{self._run.cannot['time']}; the model is known after steps {listing(self.stops)}")
        with self._assembling:
            return self._at_stop(step) if step in self.stops else self._between_stops(step)

    def _assemble(self, step: int) -> nn.Module:
        assert self._network is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the answer has the note
            return self._run.memory.until(step=step).model(self._network).eval()


def _choose_stops(run: OpenedRun) -> list[int]:
    """Choose steps whose models are kept: snapshots, as many as memory allows, evenly; in small runs some between."""
    summary = run.memory.summary()
    steps: list[int] = summary["snapshots"]
    if run.network is None:
        return steps
    exact = "mute" not in run.cannot and not run.memory.coverage.snapshots_only
    if len(steps) < _CURVE_STOPS and summary["bytes"] < _SMALL_RUN_BYTES and exact:
        between = torch.linspace(0, run.memory.steps, _CURVE_STOPS).round().long().tolist()
        steps = sorted({*steps, *between})
    model_bytes = sum(p.numel() * p.element_size() for p in run.network.parameters())
    most = max(2, min(_MAX_STOPS, _MAX_STOP_BYTES // max(model_bytes, 1)))
    if len(steps) <= most:
        return steps
    return [steps[round(place)] for place in torch.linspace(0, len(steps) - 1, most).tolist()]


def probabilities_for(network: nn.Module, resolved: ResolvedInput) -> Tensor:
    """Return the probabilities of the outputs, or of the next token: (outputs,)."""
    compute = class_probabilities if resolved.token is None else token_probabilities
    return compute(network, resolved.row)[0]


def prediction(probabilities: Tensor, text: Text | None, tokens: list[int] | None = None) -> dict[str, Any]:
    """Write probabilities for the page.

    Args:
        probabilities: Of all outputs: (outputs,).
        text: Of a language model, its training text.
        tokens: Which tokens of the vocabulary to write; else the likeliest.
    """
    if text is None:
        return {"predicted": int(probabilities.argmax()), "probabilities": probabilities.tolist()}
    if tokens is None:
        tokens = probabilities.topk(min(LIKELIEST_TOKENS, len(probabilities))).indices.tolist()
    shown = [{"token": text.vocabulary[token], "probability": float(probabilities[token])} for token in tokens]
    return {"expected": shown}


def _describe(run: OpenedRun, resolved: ResolvedInput) -> dict[str, Any]:
    if resolved.token is not None:
        assert run.text is not None
        return {"tokens": list(resolved.tokens), "separator": run.text.separator, "token": resolved.token}
    values = None if resolved.pixels is not None else resolved.row.flatten()[:_SHOWN_VALUES].tolist()
    return {
        "index": resolved.index,
        "label": resolved.label,
        "class": None if resolved.label is None else run.classes.number(resolved.task, resolved.label),
        "task": resolved.task,
        "pixels": resolved.pixels,
        "values": values,
    }
