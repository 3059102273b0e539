"""A training text as positions, in memory and as one file.

    text = Text(ids, vocabulary=("a", "b", " "), separator="", titles=((0, "THE WOLF AND THE LAMB"),))
    text.token(16), text.title_at(16)       # what stands at position 16, and in which part
    text.save("text.json")

The file is JSON in ASCII: `format`, `version`, `separator`, `vocabulary`, `titles` as pairs, `ids` as the
base64 of little-endian int32, and `crc32` over the rest.
"""

import base64
import json
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.atomic_file import write_atomically
from dualform.errors import QueryError, RunError, StorageError

_FORMAT = "dualform text"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Text:
    """A text in tokens; a token's place in it is its position."""

    ids: NDArray[np.int64]  # (positions,)
    vocabulary: tuple[str, ...]  # the token of each id
    separator: str  # between tokens when they are shown: "" for characters, " " for words
    titles: tuple[tuple[int, str], ...] = ()  # the first position of each titled part, ascending, and its title

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Text({len(self):,} tokens, vocabulary of {len(self.vocabulary):,}, {len(self.titles):,} titles)"

    def token(self, position: int) -> str:
        """The token at a position."""
        return self.tokens(position, position + 1)[0]

    def tokens(self, start: int, end: int) -> tuple[str, ...]:
        """The tokens from one position up to another, which is left out."""
        if not 0 <= start <= end <= len(self):
            raise QueryError(f"positions {start:,} to {end:,} are not all in the text, which has {len(self):,} tokens")
        return tuple(self.vocabulary[number] for number in self.ids[start:end].tolist())

    def shown(self, start: int, end: int) -> str:
        """These tokens as a person would write them."""
        return self.separator.join(self.tokens(start, end))

    def title_at(self, position: int) -> str | None:
        """The title of the part that a position is in; None before the first."""
        part = self._part(position)
        return self.titles[part - 1][1] if part else None

    def _part(self, position: int) -> int:
        """The number of the titled part a position is in, from 1; 0 before the first."""
        return bisect_right(self.titles, position, key=lambda title: title[0])

    def part_at(self, position: int) -> tuple[int, int] | None:
        """Where the titled part that a position is in begins and ends; None before the first."""
        part = self._part(position)
        if not part:
            return None
        following = self.titles[part][0] if part < len(self.titles) else len(self)
        return self.titles[part - 1][0], following

    def save(self, path: str | Path) -> None:
        """Write the text as one file, whole or not at all."""
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
        """Read what `save` wrote; anything else raises a RunError that names the file."""
        try:
            return _decoded(Path(path).read_bytes())
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}") from error
        except RecursionError:
            raise RunError(f"{path} is not a whole text: it is nested too deeply") from None
        except ValueError as error:
            raise RunError(f"{path} is not a whole text: {error}") from None


def _decoded(encoded: bytes) -> Text:
    """The text in a file's bytes. Raises ValueError or RecursionError."""
    content = json.loads(encoded)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError("it is something else")
    if content.get("version") != _VERSION:
        raise ValueError(f"its format has version {content.get('version')!r}, this dualform reads {_VERSION}")
    if content.pop("crc32", None) != _crc(content):
        raise ValueError("it was damaged or edited, its checksum does not fit")
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
    return Text(ids, tuple(vocabulary), separator, tuple((position, title) for position, title in titles))


def _fault(ids: NDArray[Any], vocabulary: Any, separator: Any, titles: Any) -> str | None:
    """What is wrong with these as a text; a checksum says only that they are what somebody wrote."""
    if not isinstance(separator, str):
        return "its separator is not a string"
    if not isinstance(vocabulary, list | tuple) or not all(isinstance(token, str) for token in vocabulary):
        return "its vocabulary is not a list of strings"
    if ids.min(initial=0) < 0 or ids.max(initial=-1) >= len(vocabulary):
        return f"its ids go from {ids.min()} to {ids.max()}, its vocabulary has {len(vocabulary)} tokens"
    if not isinstance(titles, list) or not all(_is_title(title) for title in titles):
        return "its titles are not pairs of a position and a string"
    bounds = [0, *(position for position, _ in titles), len(ids)]
    if bounds != sorted(bounds):
        return "its titles are not in the order of their positions, or not in the text"
    return None


def _is_title(content: Any) -> bool:
    if not isinstance(content, list) or len(content) != 2:
        return False
    return type(content[0]) is int and isinstance(content[1], str)  # True is an int, but no position


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
