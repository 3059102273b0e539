"""What a question says, read with suspicion: nothing unknown, everything of its kind and within bounds.

    asked = Asked({"input": {"index": 3}, "layer": "output"}, "spotlight", {"per": None, "top": 12})
    asked.input(), asked.text("layer"), asked.count_or_none("per")
    asked.end()

Whatever is wrong raises Refused, which says what.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualform.errors import Refused
from dualform.strict_json import Document

_MOST_SETS = 64
_MOST_VALUES = 10_000
_LONGEST = 20_000  # characters of a prompt or a drawing
_RANGES = ("steps", "positions")
Value = int | float | str | bool


@dataclass(frozen=True)
class OwnInput:
    """One of the run's own."""

    index: int


@dataclass(frozen=True)
class Drawn:
    strokes: str


@dataclass(frozen=True)
class Prompt:
    """A text; the token asked about is the last unless said."""

    text: str
    token: int | None


Input = OwnInput | Drawn | Prompt


@dataclass(frozen=True)
class MuteSet:
    """Slots that have one of these values in each of these tags, and lie in these ranges."""

    tags: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    steps: tuple[int, int] | None = None
    positions: tuple[int, int] | None = None


@dataclass
class Asked:
    """The entries of a question, with `usual` for those that were left out."""

    body: Any
    what: str
    usual: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        body = {**self.usual, **self.body} if isinstance(self.body, dict) else self.body
        self._entries = self._checked(lambda: Document(body, f"the question {self.what!r}"))

    def text(self, name: str) -> str:
        return str(self._checked(lambda: self._entries.text(name)))

    def text_or_none(self, name: str) -> str | None:
        found: str | None = self._checked(lambda: self._entries.text_or_none(name))
        return found

    def flag(self, name: str) -> bool:
        return bool(self._checked(lambda: self._entries.flag(name)))

    def count(self, name: str, least: int = 0, most: int = 1 << 53) -> int:
        return self._at_most(name, int(self._checked(lambda: self._entries.count(name, least))), most)

    def count_or_none(self, name: str, most: int = 1 << 53) -> int | None:
        found: int | None = self._checked(lambda: self._entries.count_or_none(name))
        return None if found is None else self._at_most(name, found, most)

    def input(self) -> Input:
        return _input(self._checked(lambda: self._entries.object("input")))

    def mute(self) -> tuple[MuteSet, ...]:
        """What is to be muted, the same sets in the same order however their entries were."""
        sets = self._checked(lambda: self._entries.list("mute"))
        if len(sets) > _MOST_SETS:
            raise Refused(f"at most {_MOST_SETS} sets can be muted at once, these are {len(sets)}")
        found = tuple(_mute_set(one) for one in sets)
        if sum(len(values) for one in found for _, values in one.tags) > _MOST_VALUES:
            raise Refused(f"at most {_MOST_VALUES:,} values can be muted at once")
        return found

    def end(self) -> None:
        self._checked(self._entries.end)

    def _at_most(self, name: str, found: int, most: int) -> int:
        if found > most:
            raise Refused(f"{name!r} of the question {self.what!r} is at most {most:,}, not {found:,}")
        return found

    def _checked(self, read: Any) -> Any:
        try:
            return read()
        except ValueError as error:
            raise Refused(str(error)) from None


def _input(entries: dict[str, Any]) -> Input:
    kinds = {"index", "drawn", "prompt"} & entries.keys()
    if len(kinds) != 1 or entries.keys() - kinds - ({"token"} if "prompt" in kinds else set()):
        raise Refused('an input is {"index": 12}, {"drawn": "..."} or {"prompt": "...", "token": 3}')
    if "index" in entries:
        return OwnInput(_whole(entries["index"], "the index of an input"))
    name = kinds.pop()
    found = entries[name]
    if not isinstance(found, str) or len(found) > _LONGEST:
        raise Refused(f"{name!r} of an input is a text of at most {_LONGEST:,} characters")
    if name == "drawn":
        return Drawn(found)
    token = entries.get("token")
    return Prompt(found, None if token is None else _whole(token, "the token of a prompt"))


def _mute_set(content: Any) -> MuteSet:
    if not isinstance(content, dict) or not content:
        raise Refused('muted slots are a list of sets such as {"label": [3]} or {"steps": [100, 200]}')
    ranges = {name: _range(name, content[name]) for name in _RANGES if name in content}
    tags = tuple((name, _values(name, content[name])) for name in sorted(content.keys() - ranges.keys()))
    return MuteSet(tags, ranges.get("steps"), ranges.get("positions"))


def _range(name: str, found: Any) -> tuple[int, int]:
    if not isinstance(found, list) or len(found) != 2:
        raise Refused(f"{name!r} is a range: [first, end]")
    first, end = (_whole(one, f"an end of {name!r}") for one in found)
    if first >= end:
        raise Refused(f"the range {name!r} is empty: {first} to {end}")
    return first, end


def _values(name: str, found: Any) -> tuple[Value, ...]:
    if not isinstance(found, list) or not found or not all(isinstance(one, int | float | str) for one in found):
        raise Refused(f"{name!r} has a list of values, at least one")
    return tuple(found)


def _whole(found: Any, what: str) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 53:
        raise Refused(f"{what} is a whole number from 0 on")
    return found
