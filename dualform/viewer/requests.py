"""The requests of the page: their entries, defaults and limits, for the server, the page and reports alike.

    request = parse_request("passages", {"input": {"prompt": "The"}, "layer": "lstm"})
    request.most                    # 5: the default of what the body leaves out
    request.key                     # 'passages {"input":{"prompt":"The","token":null},"layer":"lstm","most":5,...}'
    schema()                        # defaults and limits, as the page gets them

A key is the one way to write a request, with every entry: a report stores answers by it, and the page looks them up.
Bodies are read with suspicion: whatever is unknown, of another type or beyond a limit raises Refused, which says what.
See docs/internals/viewer.md for what is asked and answered.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from dualform.errors import Refused, UnknownName
from dualform.strict_json import Document

MAX_MUTE_SETS = 64
MAX_MUTE_VALUES = 10_000  # of tags, in all sets together
MAX_SUSPECTS = 500  # in one answer
_MAX_CHARACTERS = 20_000  # of a prompt or a drawing
_MAX_NUMBER = 2**53 - 1  # up to which a browser counts exactly

Value = int | float | str | bool
Reader = Callable[[Document, str], Any]


# What a request is about


@dataclass(frozen=True)
class IndexedInput:
    """A test input of the run."""

    index: int


@dataclass(frozen=True)
class DrawnInput:
    """Strokes of a pen, in the code of drawing.py."""

    drawn: str


@dataclass(frozen=True)
class PromptInput:
    """A text, and which of its tokens is asked about: None is the last."""

    prompt: str
    token: int | None = None


Input = IndexedInput | DrawnInput | PromptInput


def _read_input(document: Document, name: str) -> Input:
    match document.object(name):
        case {"index": index, **others} if not others:
            return IndexedInput(_whole_number(index, "the index of an input"))
        case {"drawn": str(drawn), **others} if not others and len(drawn) <= _MAX_CHARACTERS:
            return DrawnInput(drawn)
        case {"prompt": str(prompt), **others} if others.keys() <= {"token"} and len(prompt) <= _MAX_CHARACTERS:
            token = others.get("token")
            return PromptInput(prompt, None if token is None else _whole_number(token, "the token of a prompt"))
    raise ValueError(
        'an input is {"index": 12}, {"drawn": "..."} or {"prompt": "...", "token": 3}, '
        f"with a text of at most {_MAX_CHARACTERS:,} characters"
    )


@dataclass(frozen=True)
class MuteSet:
    """Slots that have one of these values in each of these tags, and lie in these ranges, whose ends are left out."""

    tags: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    steps: tuple[int, int] | None = None
    positions: tuple[int, int] | None = None

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read a set such as {"label": [3], "steps": [100, 200]}."""
        if not isinstance(content, dict) or not content:
            raise ValueError('muted slots are a list of sets such as {"label": [3]} or {"steps": [100, 200]}')
        tags, ranges = [], {}
        for name, values in sorted(content.items()):
            if not isinstance(values, list) or not values or not all(isinstance(value, Value) for value in values):
                raise ValueError(f"{name!r} has a list of values, at least one")
            if name not in ("steps", "positions"):
                tags.append((name, tuple(values)))
                continue
            if len(values) != 2:
                raise ValueError(f"{name!r} is a range: [first, end]")
            first, end = (_whole_number(value, f"an end of {name!r}") for value in values)
            if first >= end:
                raise ValueError(f"the range {name!r} is empty: {first} to {end}")
            ranges[name] = first, end
        return cls(tuple(tags), **ranges)

    def to_dict(self) -> dict[str, Any]:
        """Write the set as it is in a body."""
        ranges = {"steps": self.steps, "positions": self.positions}
        return {name: list(values) for name, values in (*self.tags, *ranges.items()) if values is not None}


def _read_mute_sets(document: Document, name: str) -> tuple[MuteSet, ...]:
    contents = document.list(name)
    if len(contents) > MAX_MUTE_SETS:
        raise ValueError(f"at most {MAX_MUTE_SETS} sets can be muted at once, these are {len(contents)}")
    sets = tuple(MuteSet.parse(content) for content in contents)
    if sum(len(values) for mute_set in sets for _, values in mute_set.tags) > MAX_MUTE_VALUES:
        raise ValueError(f"at most {MAX_MUTE_VALUES:,} values can be muted at once")
    return sets


def _whole_number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"{what} is a whole number from 0 on")
    return value


# How entries are read: the type of each field below is annotated with its reader


def _number(least: int, most: int) -> Reader:
    def read(document: Document, name: str) -> int:
        value = document.count(name, least)
        if value > most:
            raise ValueError(f"{name!r} is a whole number of at most {most:,}, not {value:,}")
        return value

    return read


def _choice(*choices: str) -> Reader:
    def read(document: Document, name: str) -> str | None:
        value = document.text_or_none(name)
        if value not in (None, *choices):
            raise ValueError(f"{name!r} is {', '.join(map(repr, choices))} or null, not {value!r}")
        return value

    return read


Text = Annotated[str, Document.text]
AnyInput = Annotated[Input, _read_input]
NumberOrNull = Annotated[int | None, Document.count_or_none]


# The requests


@dataclass(frozen=True)
class Request:
    """A request: each field is an entry of its body. `class_` is the entry `class`, which Python keeps for itself."""

    name: ClassVar[str]

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Read the body of a request.

        Args:
            body: A JSON object; entries that it leaves out have their defaults.

        Raises:
            Refused: Something in the body is wrong.
        """
        try:
            complete = {**cls.defaults(), **body} if isinstance(body, dict) else body
            document = Document(complete, f"the request {cls.name!r}")
            hints = get_type_hints(cls, include_extras=True)
            readers: dict[str, Reader] = {entry.name: hints[entry.name].__metadata__[0] for entry in fields(cls)}
            entries = {name: read(document, name.rstrip("_")) for name, read in readers.items()}
            document.end()
        except ValueError as error:
            raise Refused(str(error)) from None
        return cls(**entries)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the defaults of those entries that may be left out."""
        return {entry.name.rstrip("_"): entry.default for entry in fields(cls) if entry.default is not MISSING}

    @property
    def key(self) -> str:
        """The request in one line, as the page writes it: every entry, sorted, without spaces."""
        body = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Input):
                value = asdict(value)
            elif isinstance(value, tuple):
                value = [mute_set.to_dict() for mute_set in value]
            body[entry.name.rstrip("_")] = value
        return f"{self.name} {json.dumps(body, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}"


@dataclass(frozen=True)
class RunRequest(Request):
    name = "run"


@dataclass(frozen=True)
class JobsRequest(Request):
    name = "jobs"


@dataclass(frozen=True)
class InputsRequest(Request):
    name = "inputs"
    start: Annotated[int, Document.count] = 0
    count: Annotated[int, _number(least=1, most=500)] = 60
    class_: NumberOrNull = None
    outcome: Annotated[str | None, _choice("right", "wrong")] = None
    search: Text = ""


@dataclass(frozen=True)
class PredictRequest(Request):
    name = "predict"
    input: AnyInput
    step: NumberOrNull = None


@dataclass(frozen=True)
class HistoryRequest(Request):
    name = "history"
    input: AnyInput


@dataclass(frozen=True)
class SpotlightRequest(Request):
    name = "spotlight"
    input: AnyInput
    layer: Text
    per: Annotated[str | None, Document.text_or_none] = None
    top: Annotated[int, _number(least=1, most=200)] = 12
    curve: Annotated[int, _number(least=1, most=2000)] = 500


@dataclass(frozen=True)
class MuteRequest(Request):
    name = "mute"
    input: AnyInput
    mute: Annotated[tuple[MuteSet, ...], _read_mute_sets]


@dataclass(frozen=True)
class TrainRequest(Request):
    name = "train"
    mute: Annotated[tuple[MuteSet, ...], _read_mute_sets]
    stop: Annotated[bool, Document.flag] = False


@dataclass(frozen=True)
class RetrainedRequest(Request):
    name = "retrained"
    input: AnyInput
    mute: Annotated[tuple[MuteSet, ...], _read_mute_sets]


@dataclass(frozen=True)
class PassagesRequest(Request):
    name = "passages"
    input: AnyInput
    layer: Text
    summed: Annotated[bool, Document.flag] = True
    most: Annotated[int, _number(least=1, most=20)] = 5


@dataclass(frozen=True)
class SuspectsRequest(Request):
    name = "suspects"
    count: Annotated[int, _number(least=1, most=MAX_SUSPECTS)] = 60
    start: Annotated[int, Document.count] = 0


REQUESTS: dict[str, type[Request]] = {
    request.name: request
    for request in (
        RunRequest,
        JobsRequest,
        InputsRequest,
        PredictRequest,
        HistoryRequest,
        SpotlightRequest,
        MuteRequest,
        TrainRequest,
        RetrainedRequest,
        PassagesRequest,
        SuspectsRequest,
    )
}


def parse_request(name: str, body: Any) -> Request:
    """Read the body of the request of this name."""
    if name not in REQUESTS:
        raise UnknownName("request", name, REQUESTS)
    return REQUESTS[name].parse(body)


def schema() -> dict[str, Any]:
    """Return the defaults of all requests, and the limits that the page has to know, as JSON."""
    defaults = {name: request.defaults() for name, request in REQUESTS.items()}
    return {"defaults": defaults, "limits": {"mute_sets": MAX_MUTE_SETS, "suspects": MAX_SUSPECTS}}
