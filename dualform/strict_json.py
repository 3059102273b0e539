"""JSON read with suspicion: no key twice, every entry present and of its type, none left over; and written without NaN.

    entry = Document(parse('{"name": "0", "d_in": 784}'), "a layer")
    entry.text("name"), entry.count("d_in")
    entry.end()

Whatever is wrong raises a ValueError that says what, or a RecursionError. Names can be shown as they are: nothing in
them moves a cursor or turns the direction of writing.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_DEPTH = 100  # lists in lists; Python ends at several hundred, and not in the same place every time


def parse(text: str | bytes) -> Any:
    """Return what a JSON text says."""
    content = json.loads(text, object_pairs_hook=_no_key_twice, parse_int=_whole)
    _check_depth(content)
    json.dumps(content, ensure_ascii=False).encode()  # raises for half a surrogate pair: it could be shown nowhere
    return content


def _whole(digits: str) -> int:
    if digits == "-0":  # to Python a whole number, to others none
        raise ValueError("-0 is not a whole number")
    return int(digits)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [child for one in level for child in _children(one)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")


def _children(content: Any) -> Iterable[Any]:
    if isinstance(content, dict):
        return content.values()
    return content if isinstance(content, list) else ()


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """Escape whatever in a stranger's text cannot be shown."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class Document:
    """A JSON object whose entries are taken one by one."""

    def __init__(self, content: Any, what: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{what} is not an object")
        self._left, self._what = dict(content), what

    def text(self, name: str) -> str:
        return self._printable(name, self._take(name, str, "a text"))

    def flag(self, name: str) -> bool:
        return self._take(name, bool, "true or false")

    def count(self, name: str, least: int = 0) -> int:
        found = self._take(name, int, "a whole number")
        if isinstance(found, bool) or found < least:
            raise ValueError(f"{name!r} of {self._what} is not a whole number of at least {least}")
        return found

    def text_or_none(self, name: str) -> str | None:
        return None if self.is_none(name) else self.text(name)

    def count_or_none(self, name: str) -> int | None:
        return None if self.is_none(name) else self.count(name)

    def list(self, name: str) -> list[Any]:
        return self._take(name, list, "a list")

    def texts(self, name: str) -> tuple[str, ...]:
        found = self.list(name)
        if not all(isinstance(one, str) for one in found):
            raise ValueError(f"{name!r} of {self._what} are not all texts")
        return tuple(self._printable(name, one) for one in found)

    def object(self, name: str) -> dict[str, Any]:
        return self._take(name, dict, "an object")

    def end(self) -> None:
        """Nothing may be left: an entry of unknown meaning might change what the others mean."""
        if self._left:
            raise ValueError(f"{next(iter(self._left))!r} of {self._what} is not known")

    def is_none(self, name: str) -> bool:
        """Whether an entry is null; then it is taken."""
        if self._left.get(name, name) is not None:
            return False
        del self._left[name]
        return True

    def _printable(self, name: str, found: str) -> str:
        if not found.isprintable():
            raise ValueError(f"{name!r} of {self._what} cannot be shown: {found!r}")
        return found

    def _take(self, name: str, kind: type[T], words: str) -> T:
        if name not in self._left:
            raise ValueError(f"{name!r} of {self._what} is missing")
        found = self._left.pop(name)
        if not isinstance(found, kind):
            raise ValueError(f"{name!r} of {self._what} is not {words}")
        return found
