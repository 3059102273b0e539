"""Find the passages of a text around the best hits of a query; each hit is in one of them.

    passages(text, table.where(query=0), most=3)        # best first
    prompt_passage(tuple("At "), separator="")          # the query itself: its last token is marked

A passage holds its tokens, so that it can be shown without the text.
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
_MAX_GAP = 3  # tokens between two passages that are merged


@dataclass(frozen=True)
class Mark:
    """A marked position, with the columns of the table for it.

    Attributes:
        position: of the token in the text.
        score: of the position, such as its attention weight.
        visits: how often the position was trained on, if the table says so.
        step: training step of the hit, if the table says so.
    """

    position: int
    score: float
    visits: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Passage:
    """Tokens of a text, some of them marked.

    Attributes:
        start: position of the first token.
        end: position after the last token.
        tokens: from start to end.
        separator: between tokens when they are shown.
        marks: at least one, best first.
        title: of the part of the text that the best mark is in, if it has one.
    """

    start: int
    end: int
    tokens: tuple[str, ...]
    separator: str
    marks: tuple[Mark, ...]
    title: str | None = None

    @property
    def score(self) -> float:
        """Score of the best mark."""
        return self.marks[0].score

    @property
    def visits(self) -> int | None:
        """Visits of the best mark."""
        return self.marks[0].visits

    @property
    def step(self) -> int | None:
        """Training step of the best mark."""
        return self.marks[0].step

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
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
    """Return the passages around the best hits of one query.

        passages(text, layer.top(20, per="position"), most=3)

    Passages that overlap or nearly touch are merged. Hits are taken in their order until one more passage would
    exceed `most`. Of several rows with the same position the first one counts.

    Args:
        text: the text that was trained on.
        table: hits of one query, best first, with columns `position` and `score`; `visits` and `step` are optional.
            Hits without a position are left out.
        most: maximum number of passages.
        around: how many tokens a passage reaches to either side of a hit, 12 words or 60 characters by default;
            of characters, words at the ends that would be cut in two are left out.

    Returns:
        Passages, the one with the best hit first.
    """
    if around is None:
        around = _WORDS_AROUND if text.separator else _CHARACTERS_AROUND
    if most < 1 or around < 0:
        raise QueryError(f"most must be at least 1 and around at least 0, got most={most} and around={around}")
    hits = _hits(text, table)
    windows: list[_Window] = []
    for rank, hit in enumerate(hits):
        new = _window(text, hit.position, around, rank)
        near = [old for old in windows if old.touches(new)]
        if not near and len(windows) == most:
            break
        merged = _Window(
            min(window.start for window in [new, *near]),
            max(window.end for window in [new, *near]),
            sorted(rank for window in [new, *near] for rank in window.ranks),
        )
        windows = [old for old in windows if old not in near] + [merged]
    best_first = []
    for window in sorted(windows, key=lambda window: window.ranks):
        marks = tuple(hits[rank] for rank in window.ranks)
        tokens, title = text.tokens(window.start, window.end), text.title_at(marks[0].position)
        best_first.append(Passage(window.start, window.end, tokens, text.separator, marks, title))
    return best_first


def prompt_passage(tokens: Sequence[str], separator: str) -> Passage:
    """Return a prompt as a passage whose last token, the query, is marked.

    Args:
        tokens: of the prompt, at least one.
        separator: between tokens when they are shown.
    """
    if not tokens:
        raise QueryError("the prompt is empty: pass at least one token, the last one is the query")
    return Passage(0, len(tokens), tuple(tokens), separator, (Mark(len(tokens) - 1, 1.0),))


def _hits(text: Text, table: Table) -> list[Mark]:
    """Return the rows of a table as marks, in the table's order."""
    if not len(table):
        return []
    if "query" in table.columns and len(np.unique(table["query"])) > 1:
        raise QueryError("the table has several queries, expected one: choose it with .where(query=...)")
    positions, scores = table["position"], table["score"]
    rows = [row for row in table.rows() if row["position"] is not None]
    if positions.dtype == object and all(isinstance(row["position"], int) for row in rows):
        positions = np.array([row["position"] for row in rows], dtype=np.int64)
    if positions.dtype.kind not in "iu":
        raise QueryError(f"positions must be integers, the table has {positions.dtype}")
    outside = positions[(positions < 0) | (positions >= len(text))]
    if len(outside):
        raise QueryError(
            f"position {outside[0]:,} is outside of the text, which has {len(text):,} tokens: "
            "pass the text that was trained on"
        )
    if not np.isfinite(scores).all():
        raise QueryError("the table has scores that are NaN or infinite")
    marks: dict[int, Mark] = {}
    for row in rows:
        mark = Mark(row["position"], float(row["score"]), row.get("visits"), row.get("step"))
        marks.setdefault(mark.position, mark)
    return list(marks.values())


@dataclass(frozen=True)
class _Window:
    """Positions [start, end), and the ranks of the hits within."""

    start: int
    end: int
    ranks: list[int]  # ascending

    def touches(self, other: "_Window") -> bool:
        return self.start <= other.end + _MAX_GAP and other.start <= self.end + _MAX_GAP


def _window(text: Text, position: int, around: int, rank: int) -> _Window:
    """Return the window around a hit; where tokens are shorter than words, without words that are cut in two."""
    start, end = max(0, position - around), min(len(text), position + around + 1)
    if text.separator:
        return _Window(start, end, [rank])
    starts = (at for at in range(start, position + 1) if _between_words(text, at) and not text.token(at).isspace())
    ends = (at for at in range(end, position, -1) if _between_words(text, at) and not text.token(at - 1).isspace())
    return _Window(next(starts, start), next(ends, end), [rank])


def _between_words(text: Text, at: int) -> bool:
    """Return whether a word can begin or end here: one of the two tokens has a space there, as in " fast", "er"."""
    if at in (0, len(text)):
        return True
    return text.token(at - 1)[-1:].isspace() or text.token(at)[:1].isspace()
