"""A training text as a sequence of tokens, in memory and as one file.

    text = Text(ids, vocabulary=("a", "b", " "), separator="", titles=((0, "THE WOLF AND THE LAMB"),))
    text.token(16), text.title_at(16)       # the token at position 16, and the title of the part it is in
    text.save("text.json")

The file is JSON in ASCII: `format`, `version`, `separator`, `vocabulary`, `titles` as pairs, `ids` as the
base64 of little-endian int32, and `crc32` over the rest.
"""

import base64
import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.atomic_file import write_atomically
from dualform.errors import QueryError, RunError, StorageError
from dualform.store.checksum import crc32

_FORMAT = "dualform text"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Text:
    """A text in tokens; the index of a token is its position.

        text = Text(ids, vocabulary=("a", "b", " "), separator="")
        text.save("runs/letters/text.json")

    Save it beside a run, and name the file when recording: `about={"text": "text.json"}`.

    Attributes:
        ids: number of each token in the vocabulary, (positions,).
        vocabulary: token of each id.
        separator: between tokens when they are shown: "" for characters, " " for words.
        titles: first position and title of each titled part of the text, ascending.
    """

    ids: NDArray[np.int64]
    vocabulary: tuple[str, ...]
    separator: str
    titles: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Text({len(self):,} tokens, vocabulary of {len(self.vocabulary):,}, {len(self.titles):,} titles)"

    def token(self, position: int) -> str:
        """Return the token at a position."""
        return self.tokens(position, position + 1)[0]

    def tokens(self, start: int, end: int) -> tuple[str, ...]:
        """Return the tokens at positions [start, end)."""
        if not 0 <= start <= end <= len(self):
            raise QueryError(f"positions {start:,} to {end:,} are not all in the text, which has {len(self):,} tokens")
        return tuple(self.vocabulary[number] for number in self.ids[start:end].tolist())

    def excerpt(self, start: int, end: int) -> str:
        """Return the tokens at positions [start, end) as one string."""
        return self.separator.join(self.tokens(start, end))

    def title_at(self, position: int) -> str | None:
        """Return the title of the part that a position is in, or None before the first title."""
        part = self._part(position)
        return self.titles[part - 1][1] if part else None

    def _part(self, position: int) -> int:
        """Return the number of the titled part that a position is in, from 1; 0 before the first title."""
        return bisect_right(self.titles, position, key=lambda title: title[0])

    def part_at(self, position: int) -> tuple[int, int] | None:
        """Return start and end of the titled part that a position is in, or None before the first title."""
        part = self._part(position)
        if not part:
            return None
        following = self.titles[part][0] if part < len(self.titles) else len(self)
        return self.titles[part - 1][0], following

    def save(self, path: str | Path) -> None:
        """Write the text as one file, atomically."""
        titles = [[int(position), title] for position, title in self.titles]
        fault = _fault(self.ids, self.vocabulary, self.separator, titles)
        if fault:
            raise StorageError(f"cannot write {path}: {fault}")
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "separator": self.separator,
            "vocabulary": self.vocabulary,
            "titles": titles,
            "ids": base64.b64encode(self.ids.astype("<i4").tobytes()).decode(),
        }
        encoded = json.dumps({**content, "crc32": _crc(content)}).encode()
        write_atomically(Path(path), [np.frombuffer(encoded, np.uint8)])

    @classmethod
    def load(cls, path: str | Path) -> "Text":
        """Read a text that `save` has written; a corrupt file raises a RunError that names it."""
        try:
            content = json.loads(Path(path).read_bytes())
            if not isinstance(content, dict) or content.get("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            if content.get("version") != _VERSION:
                raise ValueError(f"its format has version {content.get('version')!r}, this dualform reads {_VERSION}")
            if content.pop("crc32", None) != _crc(content):
                raise ValueError("it was damaged or edited, its checksum does not match")
            if not isinstance(content.get("ids"), str):
                raise ValueError("its ids are not a string")
            raw = base64.b64decode(content["ids"], validate=True)
            if len(raw) % 4:
                raise ValueError("its ids end within a number")
            ids = np.frombuffer(raw, "<i4").astype(np.int64)
            parts: list[Any] = [content.get(name) for name in ("vocabulary", "separator", "titles")]
            vocabulary, separator, titles = parts
            fault = _fault(ids, vocabulary, separator, titles)
            if fault:
                raise ValueError(fault)
            return cls(ids, tuple(vocabulary), separator, tuple((position, title) for position, title in titles))
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}") from error
        except RecursionError:
            raise RunError(f"corrupt text {path}: it is nested too deeply") from None
        except ValueError as error:
            raise RunError(f"corrupt text {path}: {error}") from None


def _fault(ids: NDArray[Any], vocabulary: Any, separator: Any, titles: Any) -> str | None:
    """Return what is wrong with the parts of a text, if anything; a checksum alone does not make them valid."""
    if not isinstance(separator, str):
        return "its separator is not a string"
    if not isinstance(vocabulary, list | tuple) or not all(isinstance(token, str) for token in vocabulary):
        return "its vocabulary is not a list of strings"
    if ids.min(initial=0) < 0 or ids.max(initial=-1) >= len(vocabulary):
        return f"its ids go from {ids.min()} to {ids.max()}, its vocabulary has {len(vocabulary)} tokens"
    if not isinstance(titles, list) or not all(isinstance(title, list) and len(title) == 2 for title in titles):
        return "its titles are not pairs of a position and a string"
    if not all(type(position) is int and isinstance(title, str) for position, title in titles):  # True is no position
        return "its titles are not pairs of a position and a string"
    bounds = [0, *(position for position, _ in titles), len(ids)]
    if bounds != sorted(bounds):
        return "its titles are not in the order of their positions, or not in the text"
    return None


def _crc(content: dict[str, Any]) -> int:
    return crc32(json.dumps(content, sort_keys=True).encode())
