"""Passages: the windows of a text around the best hits of a query, each hit in one of them.

    passages(text, table.where(query=0), most=3)        # best first
    prompt_passage(tuple("At "), separator="")          # the query itself: its last token is marked

A passage knows its tokens, so that whoever shows it needs no text.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualform.errors import QueryError
from dualform.table import Table
from dualform.text.texts import Text

_CHARACTERS_AROUND = 60
_WORDS_AROUND = 12
_MAX_GAP = 3  # tokens between two passages that read as one


@dataclass(frozen=True)
class Mark:
    """A position that was hit, and what the table says of it."""

    position: int
    score: float
    visits: int | None = None  # how often training came by
    step: int | None = None


@dataclass(frozen=True)
class Passage:
    """Tokens [start, end) of a text, some of them marked; its score is that of its best mark."""

    start: int
    end: int
    tokens: tuple[str, ...]
    separator: str
    marks: tuple[Mark, ...]  # best first, at least one
    title: str | None = None

    @property
    def score(self) -> float:
        return self.marks[0].score

    @property
    def visits(self) -> int | None:
        return self.marks[0].visits

    @property
    def step(self) -> int | None:
        return self.marks[0].step

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "start": self.start,
            "end": self.end,
            "tokens": list(self.tokens),
            "separator": self.separator,
            "marks": [asdict(mark) for mark in self.marks],
            "score": self.score,
            "title": self.title,
            "visits": self.visits,
            "step": self.step,
        }


def passages(text: Text, table: Table, most: int = 3, around: int | None = None) -> list[Passage]:
    """The best hits of one query, as many as fit into `most` passages, best first.

    The table has a `position` and a `score` a row, best first; `visits` and `step` are taken along. A
    passage reaches `around` tokens to either side of its hit, and of characters only to whole words.
    Passages that overlap or nearly touch are one. Of rows with the same position the first counts.
    """
    if around is None:
        around = _WORDS_AROUND if text.separator else _CHARACTERS_AROUND
    if most < 1 or around < 0:
        raise QueryError(f"most must be at least 1, not {most}, and around at least 0, not {around}")
    hits = _hits(text, table)
    windows: list[_Window] = []
    for rank, hit in enumerate(hits):
        new = _window(text, hit.position, around, rank)
        near = [old for old in windows if old.touches(new)]
        if not near and len(windows) == most:
            break
        windows = [old for old in windows if old not in near] + [_joined([new, *near])]
    return [_passage(text, window, hits) for window in sorted(windows, key=lambda window: window.ranks)]


def prompt_passage(tokens: Sequence[str], separator: str) -> Passage:
    """A prompt whose last token, the query, is marked."""
    if not tokens:
        raise QueryError("the prompt is empty: a query is its last token")
    return Passage(0, len(tokens), tuple(tokens), separator, (Mark(len(tokens) - 1, 1.0),))


def _hits(text: Text, table: Table) -> list[Mark]:
    """The rows of a table as marks, in its order."""
    if not len(table):
        return []
    if "query" in table.columns and len(np.unique(table["query"])) > 1:
        raise QueryError("passages are those of one query, and the table has several: choose with .where(query=...)")
    positions, scores = table["position"], table["score"]
    if positions.dtype.kind not in "iu":
        raise QueryError(f"positions are whole numbers, and the table has {positions.dtype}")
    outside = positions[(positions < 0) | (positions >= len(text))]
    if len(outside):
        raise QueryError(
            f"position {outside[0]:,} is not in the text, which has {len(text):,} tokens: was it the one trained on?"
        )
    if not np.isfinite(scores).all():
        raise QueryError("the table has scores that are NaN or infinite")
    found: dict[int, Mark] = {}
    for row in table.rows():
        mark = Mark(row["position"], float(row["score"]), row.get("visits"), row.get("step"))
        found.setdefault(mark.position, mark)
    return list(found.values())


@dataclass(frozen=True)
class _Window:
    """Positions [start, end), and the ranks of the hits within."""

    start: int
    end: int
    ranks: list[int]  # ascending

    def touches(self, other: "_Window") -> bool:
        return self.start <= other.end + _MAX_GAP and other.start <= self.end + _MAX_GAP


def _joined(windows: Sequence[_Window]) -> _Window:
    ranks = sorted(rank for one in windows for rank in one.ranks)
    return _Window(min(one.start for one in windows), max(one.end for one in windows), ranks)


def _passage(text: Text, window: _Window, hits: Sequence[Mark]) -> Passage:
    marks = tuple(hits[rank] for rank in window.ranks)
    tokens = text.tokens(window.start, window.end)
    return Passage(window.start, window.end, tokens, text.separator, marks, text.title_at(marks[0].position))


def _window(text: Text, position: int, around: int, rank: int) -> _Window:
    """What is within reach of a hit; where tokens are less than words, without words that are cut in half."""
    start, end = max(0, position - around), min(len(text), position + around + 1)
    if text.separator:
        return _Window(start, end, [rank])
    start = next((at for at in range(start, position + 1) if _begins_word(text, at)), start)
    end = next((at for at in range(end, position, -1) if _ends_word(text, at)), end)
    return _Window(start, end, [rank])


def _begins_word(text: Text, at: int) -> bool:
    return not text.token(at).isspace() and _between_words(text, at)


def _ends_word(text: Text, at: int) -> bool:
    return not text.token(at - 1).isspace() and _between_words(text, at)


def _between_words(text: Text, at: int) -> bool:
    """Whether there is space on one side or the other, as pieces of words have it: " fast", "er"."""
    if at in (0, len(text)):
        return True
    return text.token(at - 1)[-1:].isspace() or text.token(at)[:1].isspace()
