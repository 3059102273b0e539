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


def resolve_input(run: OpenedRun, named: Input) -> ResolvedInput:
    """Find or make the input that a request names; raises Refused for what this run cannot be asked about."""
    if "spotlight" in run.cannot:
        raise Refused(run.cannot["spotlight"])
    lines = code.opened(run)
    if isinstance(named, PromptInput):
        if run.text is None:
            raise Refused("prompts are for runs of language models")
        if not named.prompt:
            raise Refused("the prompt is empty: a query is one of its tokens")
        ids = encode_prompt(named.prompt, run.text)
        token = len(ids) - 1 if named.token is None else named.token
        if not 0 <= token < len(ids):
            raise Refused(f"there is no token {named.token}; the prompt has {len(ids)}, counted from 0")
        row = torch.from_numpy(ids[: token + 1])[None]  # (1, time)
        tokens = tuple(run.text.vocabulary[number] for number in ids.tolist())
        return ResolvedInput(row, lines + code.prompt_row(run, named.prompt, token), tokens=tokens, token=token)
    if run.inputs is None:
        raise Refused('this run is of a language model: its inputs are {"prompt": "..."}')
    if isinstance(named, DrawnInput):
        if run.drawing is None or run.pictures is None:
            raise Refused(run.cannot.get("draw", "there is nothing to draw for"))
        image = run.drawing.image(named.drawn)
        lines += code.drawn_row(run, named.drawn)
        return ResolvedInput(run.drawing.input(image), lines, pixels=run.pictures.encode(image))
    assert run.network is not None
    row = in_precision_of(run.network, run.inputs.row(named.index))
    label = None if run.inputs.labels is None else int(run.inputs.labels[named.index])
    pixels = None if run.pictures is None else run.pictures.test(named.index)
    lines += code.indexed_row(run, named.index)
    return ResolvedInput(row, lines, named.index, label, run.task_of(named.index), pixels)
