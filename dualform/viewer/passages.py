"""Passages of the training text behind what a language model expects: `passages`."""

from typing import Any

from dualform import Top
from dualform.errors import QueryError, Refused
from dualform.text import Text, passages
from dualform.viewer import code
from dualform.viewer.opened_run import POSITION, OpenedRun
from dualform.viewer.requests import PassagesRequest
from dualform.viewer.resolved_input import resolve_input

_POSITIONS = 10  # for each passage: neighbours are merged


def answer(run: OpenedRun, request: PassagesRequest) -> dict[str, Any]:
    """Find passages by attention summed over all visits to a position, or by single visits."""
    resolved = resolve_input(run, request.input)
    if resolved.token is None or run.text is None:
        raise Refused("passages are asked for with a prompt")
    assert run.network is not None
    spotlight = run.memory.attend(run.network, resolved.row, rows=-1)[request.layer]
    hits = _POSITIONS * request.most
    (table,) = spotlight.collect(Top(hits, per=POSITION if request.summed else None))
    best = passages(run.text, table.without("step") if request.summed else table, request.most)
    return {
        "passages": [p.to_dict() | {"document": run.text.part_at(p.marks[0].position)} for p in best],
        "python": "\n".join([*resolved.python, "", *code.passages(request, hits)]),
    }


def example_prompt(text: Text) -> str:
    """Return words from the middle of the training text, to begin with."""
    start = len(text) // 2
    try:
        words = " ".join(text.excerpt(start, min(len(text), start + (8 if text.separator else 60))).split())
    except QueryError:
        return ""
    return words if text.separator else words.partition(" ")[2][:40].rpartition(" ")[0]
