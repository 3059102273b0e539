"""Passages of the training text behind what a language model expects: `passages`."""

from typing import Any

from dualform import Top
from dualform.errors import QueryError, Refused
from dualform.text import Passage, Text, passages
from dualform.viewer import code
from dualform.viewer.exhibit import POSITION, Exhibit
from dualform.viewer.requests import PassagesRequest
from dualform.viewer.subject import subject_of

_HITS = 10  # positions for each passage: neighbours are merged


def answer(exhibit: Exhibit, request: PassagesRequest) -> dict[str, Any]:
    """By attention summed over all visits to a position, or by single visits."""
    subject = subject_of(exhibit, request.input)
    if subject.token is None or exhibit.text is None:
        raise Refused("passages are asked for with a prompt")
    assert exhibit.network is not None
    spotlight = exhibit.memory.attend(exhibit.network, subject.row, rows=-1)[request.layer]
    hits = _HITS * request.most
    (table,) = spotlight.collect(Top(hits, per=POSITION if request.summed else None))
    found = passages(exhibit.text, table.without("step") if request.summed else table, request.most)
    lines = [*subject.python, "", *code.passages(request, hits)]
    return {"passages": [_shown(exhibit.text, one) for one in found], "python": "\n".join(lines)}


def _shown(text: Text, passage: Passage) -> dict[str, Any]:
    return passage.to_dict() | {"document": text.part_at(passage.marks[0].position)}


def example(text: Text) -> str:
    """Words from the middle of the training text, to begin with."""
    start = len(text) // 2
    try:
        shown = text.shown(start, min(len(text), start + (8 if text.separator else 60)))
    except QueryError:
        return ""
    words = " ".join(shown.split())
    return words if text.separator else words.partition(" ")[2][:40].rpartition(" ")[0]
