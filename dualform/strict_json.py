"""Parse JSON strictly: no duplicate keys, every entry present and of its type, none left over; and write no NaN.

    with Document(parse('{"name": "0", "d_in": 784}'), "a layer") as entry:
        entry.text("name"), entry.count("d_in")

Invalid JSON raises a ValueError that says what is wrong, or a RecursionError. Texts are safe to show: nothing in
them moves a cursor or turns the direction of writing.
"""

import json
import math
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_DEPTH = 100  # of nested lists; Python's own limit is at several hundred, and not always the same


def parse(text: str | bytes) -> Any:
    """Return the content of a JSON text."""
    content = json.loads(text, object_pairs_hook=_unique_keys, parse_int=_whole_number)
    level, depth = [content], 0
    while level and depth < _MAX_DEPTH:
        depth += 1
        parents = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        level = [child for children in parents for child in children]
    if level:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    json.dumps(content, ensure_ascii=False).encode()  # raises for half a surrogate pair, which cannot be shown
    return content


def _whole_number(digits: str) -> int:
    if digits == "-0":  # a whole number to Python, but not to other parsers
        raise ValueError("-0 is not a whole number")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{name!r} is there twice")
        content[name] = value
    return content


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """Escape the characters of an untrusted text that cannot be printed."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class Document:
    """A JSON object whose entries are taken one by one."""

    def __init__(self, content: Any, what: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{what} is not an object")
        self._left, self._what = dict(content), what

    def __enter__(self) -> "Document":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()

    def text(self, name: str) -> str:
        return self._printable(name, self._take(name, str, "a text"))

    def flag(self, name: str) -> bool:
        return self._take(name, bool, "true or false")

    def count(self, name: str, least: int = 0) -> int:
        value = self._take(name, int, "a whole number")
        if isinstance(value, bool) or value < least:
            raise ValueError(f"{name!r} of {self._what} is not a whole number of at least {least}")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self.is_none(name) else self.text(name)

    def count_or_none(self, name: str) -> int | None:
        return None if self.is_none(name) else self.count(name)

    def list(self, name: str) -> list[Any]:
        return self._take(name, list, "a list")

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.list(name)
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{name!r} of {self._what} are not all texts")
        return tuple(self._printable(name, value) for value in values)

    def object(self, name: str) -> dict[str, Any]:
        return self._take(name, dict, "an object")

    def end(self) -> None:
        """Raise if an entry is left: one of unknown meaning might change what the others mean."""
        if self._left:
            raise ValueError(f"{next(iter(self._left))!r} of {self._what} is not known")

    def is_none(self, name: str) -> bool:
        """Return whether an entry is null, and take it if it is."""
        if self._left.get(name, name) is not None:
            return False
        del self._left[name]
        return True

    def _printable(self, name: str, value: str) -> str:
        if not value.isprintable():
            raise ValueError(f"{name!r} of {self._what} cannot be shown: {value!r}")
        return value

    def _take(self, name: str, kind: type[T], expected: str) -> T:
        if name not in self._left:
            raise ValueError(f"{name!r} of {self._what} is missing")
        value = self._left.pop(name)
        if not isinstance(value, kind):
            raise ValueError(f"{name!r} of {self._what} is not {expected}")
        return value
