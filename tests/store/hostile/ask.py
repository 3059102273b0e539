"""Asks a run everything, each question by itself, so that no refusal hides a wrong answer to another question.

    answers = everything(path)          # {"load": "opened", "verify": "...", "top 0": Refused("... is damaged")}

Answers are texts with every digit of every number: the same code on the same bytes gives the same ones, NaN
included. Only dualform's own errors become a `Refused`; anything else escapes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dualform
from dualform import Memory, store
from dualform.attention.spotlight import LayerSpotlight
from dualform.errors import DualformError, RunError
from dualform.recipe.replay import TrainedAgain
from dualform.store import Run

UNREAD = "(what was not read)"  # stands for the reason, which is compared by itself


@dataclass(frozen=True)
class Refused:
    """One of dualform's own errors: for damage, or because the question does not fit the memory."""

    message: str
    damage: bool = True

    @classmethod
    def by(cls, error: DualformError) -> "Refused":
        return cls(str(error), isinstance(error, RunError))


Answers = Mapping[str, str | Refused]
Question = Callable[[], Any]


def everything(path: Path, *, thorough: bool = True, recipe: dualform.Recipe | None = None) -> dict[str, str | Refused]:
    """The answers, and what was not read."""
    try:
        run = Run(
            path, None if recipe is None else partial(TrainedAgain, recipe, 1 << 20)
        )  # as dualform.load does, which also warns of what was not read
        return answers_of(run, thorough=thorough)
    except DualformError as error:
        return {"load": Refused.by(error)}


def answers_of(run: Run, *, thorough: bool = True) -> dict[str, str | Refused]:
    """The same of a run that was opened."""
    memory = Memory(run)
    found: dict[str, str | Refused] = {"unread": run.unread or ""}
    for name, question in _questions(memory, run, thorough):
        try:
            found[name] = _shown(question(), run.unread)
        except DualformError as error:
            found[name] = Refused.by(error)
    return found


def _shown(answer: Any, unread: str | None) -> str:
    answer = answer.to_dict() if hasattr(answer, "to_dict") else answer
    answer = answer.tolist() if isinstance(answer, torch.Tensor) else answer
    if isinstance(answer, dict):
        return repr({name: _without(one, unread) for name, one in answer.items()})
    return repr(_without(answer, unread))


def _without(answer: Any, unread: str | None) -> Any:
    return answer.replace(unread, UNREAD) if unread and isinstance(answer, str) else answer


def _questions(memory: Memory, run: Run, thorough: bool) -> Iterator[tuple[str, Question]]:
    yield "info", lambda: store.summary(run)
    yield "lines", lambda: store.summary_lines(run)
    yield "verify", memory.verify
    for name, layer in run.layers.items():
        if layer.d_in > 4096:  # it would be the question that takes the memory
            continue
        queries = torch.linspace(-1.0, 2.0, 2 * layer.d_in).reshape(2, layer.d_in)
        spotlight = memory.attend({name: queries})[name]
        about = [*_usual(spotlight, memory), *(_further(spotlight, memory) if thorough else ())]
        yield from ((f"{what} {name!r}", question) for what, question in about)


def _usual(layer: LayerSpotlight, memory: Memory) -> Iterator[tuple[str, Question]]:
    yield "top", lambda: layer.top(2)
    yield "output", layer.output
    for tag in ("s", "i"):
        if tag in memory.tags:
            yield f"total by {tag}", lambda tag=tag: layer.total(by=tag)  # type: ignore[misc]
            yield f"top per {tag}", lambda tag=tag: layer.top(2, per=tag)  # type: ignore[misc]
    yield "timeline", lambda: layer.timeline(2)


def _further(layer: LayerSpotlight, memory: Memory) -> Iterator[tuple[str, Question]]:
    yield "total", lambda: layer.total(absolute=True)
    yield "valued", lambda: layer.total(absolute=True, valued=True)
    yield "timeline of sizes", lambda: layer.timeline(3, absolute=True)
    yield "weights", lambda: _weights(memory, layer.name)
    yield "slots", lambda: memory.slots(layer.name)
    if "i" in memory.tags:  # every other row of a shard
        yield "weights without i", lambda: _weights(memory.without(i=0), layer.name)
    width = Run(memory.path).layers[layer.name].d_out
    yield "contribution", lambda: layer.contribution(torch.ones(width)).top(2)
    yield "effective", lambda: layer.effective(0).total()
    for tag, kind in memory.tags.items():
        yield f"total by {tag}, all", lambda tag=tag: layer.total(by=tag, absolute=True)  # type: ignore[misc]
        yield f"top by {tag}", lambda tag=tag: layer.top(1, by=tag)  # type: ignore[misc]
        if kind in ("int", "string"):
            wanted = 0 if kind == "int" else "a"
            yield f"where {tag}", lambda t=tag, w=wanted: memory.where(**{t: w}).slots(layer.name)  # type: ignore[misc]
    if {"i", "s", "t"} <= {*memory.tags}:
        yield "total by all tags", lambda: layer.total(by=("i", "s", "t"))
        yield "top per i by s and t", lambda: layer.top(1, by=("s", "t"), per="i")
    yield "printed", lambda: repr(memory)
    if layer.name == "0" and memory.layers == ["0"]:
        yield "asked with a model", lambda: _with_a_model(memory, layer)


def _weights(memory: Memory, layer: str) -> dict[str, Any]:
    return {name: one.tolist() for name, one in memory.weights(layer).items()}


def _with_a_model(memory: Memory, layer: LayerSpotlight) -> Any:
    """The model as the memory has it, and what that model attends to."""
    recorded = Run(memory.path).layers["0"]
    model = memory.model(nn.Sequential(nn.Linear(recorded.d_in, recorded.d_out, bias=len(recorded.uses) > 1)))
    spotlight = memory.attend(model, layer.queries.float())
    weights = {name: one.tolist() for name, one in model.named_parameters()}
    return {"weights": weights, "note": spotlight.note, "total": spotlight["0"].total().to_dict()}


def escaped(answers: Answers, right: Answers, prefix: Answers, file: str) -> str | None:
    """What is wrong with the answers of a run with one bad file; None: nothing.

    Each has to be right, or a refusal that names the file. Where the file was not read, each has to be that of
    the run before it.
    """
    unread = answers.get("unread", "")
    assert isinstance(unread, str)
    if unread and file not in unread:
        return f"what was not read does not name {file}: {unread}"
    for name, answer in answers.items():
        if isinstance(answer, Refused):
            if file not in answer.message and answer != (prefix if unread else right).get(name):
                return f"{name}: the refusal does not name {file}: {answer.message}"
        elif name != "unread" and answer != (prefix if unread else right).get(name):
            return f"{name}: a wrong answer: {answer}"
    return None


def blamed(answers: Answers) -> list[str]:
    """What is said against files: why some were not read, and each refusal because of damage."""
    refused = [answer.message for answer in answers.values() if isinstance(answer, Refused) and answer.damage]
    unread = answers.get("unread", "")
    return [*refused, *([unread] if isinstance(unread, str) and unread else [])]
