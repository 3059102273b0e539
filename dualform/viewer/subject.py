"""The input a question is about: a row for the model, what is known of it, and the Python that makes it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.companions import in_precision_of
from dualform.datasets.tokens import encode_prompt
from dualform.errors import Refused
from dualform.viewer import code
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.requests import DrawnInput, IndexedInput, Input, PromptInput


@dataclass(frozen=True)
class Subject:
    """A row for the model, (1, ...); of a prompt, its tokens up to the one asked about."""

    row: Tensor
    python: list[str]  # lines that make `memory`, `model` and `row`
    index: int | None = None
    label: int | None = None
    task: str | None = None
    pixels: str | None = None
    tokens: tuple[str, ...] = ()  # of a prompt: all of them
    token: int | None = None


def subject_of(exhibit: Exhibit, asked: Input) -> Subject:
    """Raises Refused for what this run cannot be asked about."""
    if "spotlight" in exhibit.cannot:
        raise Refused(exhibit.cannot["spotlight"])
    if isinstance(asked, PromptInput):
        return _prompt(exhibit, asked)
    if exhibit.inputs is None:
        raise Refused('this run is of a language model: its inputs are {"prompt": "..."}')
    return _own(exhibit, asked) if isinstance(asked, IndexedInput) else _drawn(exhibit, asked)


def _own(exhibit: Exhibit, asked: IndexedInput) -> Subject:
    assert exhibit.inputs is not None
    assert exhibit.network is not None
    row = in_precision_of(exhibit.network, exhibit.inputs.row(asked.index))
    label = None if exhibit.inputs.labels is None else int(exhibit.inputs.labels[asked.index])
    pixels = None if exhibit.pictures is None else exhibit.pictures.test(asked.index)
    lines = code.opened(exhibit) + code.own_row(exhibit, asked.index)
    return Subject(row, lines, asked.index, label, task_of(exhibit, asked.index), pixels)


def task_of(exhibit: Exhibit, index: int) -> str | None:
    """The task of an input; None if there are several and it is not known."""
    if exhibit.inputs is not None and exhibit.inputs.tasks is not None:
        names = [name for name in exhibit.classes.outputs if name] or [task.name for task in exhibit.classes.tasks]
        number = int(exhibit.inputs.tasks[index])
        return names[number] if 0 <= number < len(names) else None
    return exhibit.classes.tasks[0].name if len(exhibit.classes.tasks) == 1 else None


def _drawn(exhibit: Exhibit, asked: DrawnInput) -> Subject:
    if exhibit.pen is None or exhibit.pictures is None:
        raise Refused(exhibit.cannot.get("draw", "there is nothing to draw for"))
    image = exhibit.pen.image(asked.drawn)
    lines = code.opened(exhibit) + code.drawn_row(exhibit, asked.drawn)
    return Subject(exhibit.pen.input(image), lines, pixels=exhibit.pictures.encoded(image))


def _prompt(exhibit: Exhibit, asked: PromptInput) -> Subject:
    if exhibit.text is None:
        raise Refused("prompts are for runs of language models")
    if not asked.prompt:
        raise Refused("the prompt is empty: a query is one of its tokens")
    ids = encode_prompt(asked.prompt, exhibit.text)
    token = len(ids) - 1 if asked.token is None else asked.token
    if not 0 <= token < len(ids):
        raise Refused(f"there is no token {asked.token}; the prompt has {len(ids)}, counted from 0")
    row = torch.from_numpy(ids[: token + 1])[None]  # (1, time)
    tokens = tuple(exhibit.text.vocabulary[number] for number in ids.tolist())
    return Subject(
        row, code.opened(exhibit) + code.prompt_row(exhibit, asked.prompt, token), tokens=tokens, token=token
    )
