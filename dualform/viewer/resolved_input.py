"""The input a request is about: a row for the model, what is known of it, and the Python that makes it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.companions import in_precision_of
from dualform.datasets.tokens import encode_prompt
from dualform.errors import Refused
from dualform.viewer import code
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.requests import DrawnInput, Input, PromptInput


@dataclass(frozen=True)
class ResolvedInput:
    """A row for the model, (1, ...); of a prompt, its tokens up to the one asked about."""

    row: Tensor
    python: list[str]  # lines that make `memory`, `model` and `row`
    index: int | None = None
    label: int | None = None
    task: str | None = None
    pixels: str | None = None
    tokens: tuple[str, ...] = ()  # of a prompt: all of them
    token: int | None = None


def resolve_input(run: OpenedRun, wanted: Input) -> ResolvedInput:
    """Find or make an input; raises Refused for what this run cannot be asked about."""
    if "spotlight" in run.cannot:
        raise Refused(run.cannot["spotlight"])
    if isinstance(wanted, PromptInput):
        return _encode_prompt(run, wanted)
    if run.inputs is None:
        raise Refused('this run is of a language model: its inputs are {"prompt": "..."}')
    if isinstance(wanted, DrawnInput):
        if run.drawing is None or run.pictures is None:
            raise Refused(run.cannot.get("draw", "there is nothing to draw for"))
        image = run.drawing.image(wanted.drawn)
        lines = code.opened(run) + code.drawn_row(run, wanted.drawn)
        return ResolvedInput(run.drawing.input(image), lines, pixels=run.pictures.encode(image))
    assert run.network is not None
    index = wanted.index
    row = in_precision_of(run.network, run.inputs.row(index))
    label = None if run.inputs.labels is None else int(run.inputs.labels[index])
    pixels = None if run.pictures is None else run.pictures.test(index)
    lines = code.opened(run) + code.indexed_row(run, index)
    return ResolvedInput(row, lines, index, label, run.task_of(index), pixels)


def _encode_prompt(run: OpenedRun, wanted: PromptInput) -> ResolvedInput:
    if run.text is None:
        raise Refused("prompts are for runs of language models")
    if not wanted.prompt:
        raise Refused("the prompt is empty: a query is one of its tokens")
    ids = encode_prompt(wanted.prompt, run.text)
    token = len(ids) - 1 if wanted.token is None else wanted.token
    if not 0 <= token < len(ids):
        raise Refused(f"there is no token {wanted.token}; the prompt has {len(ids)}, counted from 0")
    row = torch.from_numpy(ids[: token + 1])[None]  # (1, time)
    tokens = tuple(run.text.vocabulary[number] for number in ids.tolist())
    lines = code.opened(run) + code.prompt_row(run, wanted.prompt, token)
    return ResolvedInput(row, lines, tokens=tokens, token=token)
