"""Documents that lie: every key of a manifest and of what a shard says of itself, and the texts they are in."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dualform.store.schema import VERSION
from tests.store.hostile.edits import FIRST, LAST, MANIFEST, SECOND, Case, Edit, places, put, set_info, set_manifest
from tests.store.hostile.forge import LEFT_OUT, Forged

WRONG: Sequence[Any] = (None, [], {}, "x", "", -1, 0, 1.5, True, 10**30, float("nan"), [[]], {"x": []}, "\x1b[2J", "\0")


def twice(text: str, key: str) -> str:
    """A JSON text in which the first entry of that name is there two times."""
    at = text.index(f'"{key}"')
    _, end = json.JSONDecoder().raw_decode(text, text.index(":", at + len(key) + 2) + 2)
    return f"{text[:at]}{text[at:end]}, {text[at:]}"


def manifest_cases(run: str, manifest: Any) -> Iterator[Case]:
    for place in places(manifest):
        for value in (*WRONG, LEFT_OUT):
            shown = "missing" if value is LEFT_OUT else repr(value)
            edit = partial(_put_in_manifest, place=place, value=value)
            yield Case(f"manifest {place} {shown}", edit, MANIFEST, run, refused=False)


def _put_in_manifest(forged: Forged, place: Sequence[Any], value: Any) -> None:
    put(forged.manifest, place, value)


def info_cases(run: str, info: Any) -> Iterator[Case]:
    for place in [*places(info), ("previous",), ("crc32",), ("crc32", "audit/0")]:
        for value in (*WRONG, *([] if place[0] in ("previous", "crc32") else [LEFT_OUT])):
            shown = "missing" if value is LEFT_OUT else repr(value)
            edit = partial(_put_in_info, place=place, value=value)
            yield Case(f"info {place} {shown}", edit, SECOND, run, refused=False)


def _put_in_info(forged: Forged, place: Sequence[Any], value: Any) -> None:
    if place == ("crc32", "audit/0"):
        place, value = ("crc32",), {"audit/0": value}
    put(forged.shards[1].info, place, value)


def as_info(change: Callable[[str], str], shard: int = 1) -> Edit:
    def edit(forged: Forged) -> None:
        forged.shards[shard].as_info = change

    return edit


def as_header(change: Callable[[bytes], bytes], shard: int = 1) -> Edit:
    def edit(forged: Forged) -> None:
        forged.shards[shard].as_header = change

    return edit


def as_manifest(change: Callable[[str], str]) -> Edit:
    def edit(forged: Forged) -> None:
        forged.as_manifest = change

    return edit


def entries(change: Callable[[dict[str, Any]], Any], shard: int = 1) -> Edit:
    def edit(forged: Forged) -> None:
        forged.shards[shard].entry = change

    return edit


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


_DEEP = "[" * 100_000
_DIGITS = "9" * 10_000
_KEYS_OF_A_MANIFEST = (
    "format", "version", "run", "created", "software", "storage", "dtype", "optimizers", "kind", "layers", "name",
    "d_in", "d_out", "keys", "uses", "columns", "parameters", "others", "frozen_numbers", "about", "crc32",
)  # fmt: skip
_KEYS_OF_AN_INFO = (
    "version", "run", "index", "previous", "first_step", "last_step", "tags", "i", "ended", "dropped",
    "notes", "crc32", "audit/0",
)  # fmt: skip


def dropped(first: Any, last: Any) -> Edit:
    """Layers that the second shard says were dropped, and the last one."""

    def edit(forged: Forged) -> None:
        forged.shards[1].info["dropped"], forged.shards[2].info["dropped"] = first, last

    return edit


_NO_OBJECTS: Sequence[Any] = (None, [], "0", 1)
_NO_STEPS: Sequence[Any] = (None, -1, 2, 0.0, True, "0", [], 10**30, float("nan"))
DROPPED = [
    *(Case(f"dropped {value!r}", set_info(value, "dropped"), says="dropped") for value in _NO_OBJECTS),
    Case("a layer dropped that is not there", set_info({"x": 0}, "dropped"), says="not there: 'x'"),
    Case("a layer dropped that cannot be shown", set_info({"\x1b[2J": 0}, "dropped"), says="not there"),
    *(
        Case(f"a layer dropped at {step!r}", dropped({"1": step}, {"1": step}), run="embedding", says="no step")
        for step in _NO_STEPS
    ),
    Case("every layer dropped", dropped({"0": 0}, {"0": 0}), says="every layer"),
    Case("both layers dropped", dropped({}, {"0": 1, "1": 1}), LAST, "embedding", says="every layer"),
    Case("a layer dropped, and there again", dropped({"1": 0}, {}), LAST, "embedding", says="other layers"),
    Case("a layer dropped at two steps", dropped({"1": 0}, {"1": 1}), LAST, "embedding", says="other layers"),
    Case("another layer dropped", dropped({"1": 0}, {"0": 1}), LAST, "embedding", says="other layers"),
    Case("a layer dropped before its shard", dropped({}, {"1": 0}), LAST, "embedding", says="earlier"),
    Case("a layer dropped that has slots", dropped({"1": 0}, {"1": 0}), run="embedding", refused=False),
]

_OTHER: dict[str, Any] = {"name": "x", "shape": [2], "optimizer": 0, "reason": "none"}
_NO_OTHERS: Sequence[Any] = (
    None, {}, "x", [1], [None], [{}], [{**_OTHER, "x": 1}], [{**_OTHER, "shape": [-1]}], [{**_OTHER, "shape": [1.0]}],
    [{**_OTHER, "optimizer": 1}], [{**_OTHER, "optimizer": -1}], [{**_OTHER, "reason": None}],
    [{**_OTHER, "reason": "\x1b[2J"}], [{**_OTHER, "name": "0.weight"}], [_OTHER, _OTHER],
)  # fmt: skip
_NO_COUNTS: Sequence[Any] = (None, -1, 1.0, "1", True, [])
_NO_NOTES: Sequence[Any] = (None, "x", [1], ["\x1b[2J"], {})
OTHERS = [
    *(Case(f"others {others!r}"[:60], set_manifest(others, "others"), MANIFEST) for others in _NO_OTHERS),
    *(Case(f"{count!r} frozen numbers", set_manifest(count, "frozen_numbers"), MANIFEST) for count in _NO_COUNTS),
    *(Case(f"notes {notes!r}", set_info(notes, "notes")) for notes in _NO_NOTES),
]

DOCUMENTS = [
    *DROPPED,
    *OTHERS,
    Case("manifest of a newer version", set_manifest(VERSION + 1, "version"), MANIFEST, says="upgrade"),
    *(
        Case(f"manifest of version {version!r}", set_manifest(version, "version"), MANIFEST, says="version")
        for version in (0, str(VERSION), float(VERSION), True, None, 10**30, [VERSION])
    ),
    Case("manifest of an older version", set_manifest(1, "version"), MANIFEST, says="record again"),
    Case("shard of a newer version", set_info(VERSION + 1, "version"), says="upgrade"),
    *(
        Case(f"shard of version {version!r}", set_info(version, "version"), says="version")
        for version in (0, str(VERSION), float(VERSION), True, None, 10**30)
    ),
    *(
        Case(f"manifest with {key!r} twice", as_manifest(partial(twice, key=key)), MANIFEST, says="twice")
        for key in _KEYS_OF_A_MANIFEST
    ),
    *(Case(f"info with {key!r} twice", as_info(partial(twice, key=key)), says="twice") for key in _KEYS_OF_AN_INFO),
    *(
        Case(f"header with {key!r} twice", as_header(lambda h, k=key: twice(h.decode(), k).encode()))  # type: ignore[misc]
        for key in ("audit/0", "__metadata__", "dtype", "shape", "data_offsets", "digest", "dualform")
    ),
    Case("manifest with a key nobody knows", set_manifest(1, "x"), MANIFEST, says="'x'"),
    Case("layer with a key nobody knows", set_manifest(1, "layers", 0, "x"), MANIFEST, says="'x'"),
    Case("use with a key nobody knows", set_manifest(1, "layers", 0, "uses", 0, "x"), MANIFEST, says="'x'"),
    Case("parameter with a key nobody knows", set_manifest(1, "parameters", 0, "x"), MANIFEST, says="'x'"),
    Case("storage with a key nobody knows", set_manifest(1, "storage", "x"), MANIFEST, says="'x'"),
    Case("optimiser with a key nobody knows", set_manifest(1, "optimizers", 0, "x"), MANIFEST, says="'x'"),
    Case("info with a key nobody knows", set_info(1, "x"), says="'x'"),
    Case("manifest of brackets", as_manifest(lambda text: _DEEP), MANIFEST),
    Case("manifest of objects", as_manifest(lambda text: '{"a":' * 100_000), MANIFEST),
    Case("info of brackets", as_info(lambda text: _DEEP)),
    Case("header of brackets", as_header(lambda header: _DEEP.encode())),
    Case("header of objects", as_header(lambda header: b'{"a":' * 100_000)),
    *(
        Case(f"about {depth} deep", set_manifest(nested(depth), "about", "x"), MANIFEST, refused=depth > 100)
        for depth in (50, 300, 450, 900)
    ),
    *(Case(f"ended {depth} deep", set_info(nested(depth), "ended")) for depth in (50, 450, 900)),
    Case("a tag of a kind that is a list", set_info([], "tags", "i")),
    Case("number of 10,000 digits", as_info(lambda text: text.replace('"index": 1', f'"index": {_DIGITS}'))),
    Case(
        "manifest's number of 10,000 digits",
        as_manifest(lambda t: t.replace('"d_in": 2', f'"d_in": {_DIGITS}')),
        MANIFEST,
    ),
    Case("NaN for an index", set_info(float("nan"), "index")),
    Case("Infinity for a width", set_manifest(float("inf"), "layers", 0, "d_in"), MANIFEST),
    Case("NaN about a run", set_manifest(float("nan"), "about", "n"), MANIFEST, refused=False),
    Case("half a surrogate pair about a run", set_manifest("\ud800", "about", "n"), MANIFEST),
    Case("half a surrogate pair for a name", set_manifest("\ud800", "run"), MANIFEST),
    Case("half a surrogate pair in the info", set_info("\ud800", "ended")),
    Case("a terminal's escapes in the name of a run", set_manifest("\x1b[2J", "run"), MANIFEST),
    Case("a terminal's escapes in `software`", set_manifest("\x1b[2J", "software"), MANIFEST),
    Case("a terminal's escapes in `ended`", set_info("\x1b[2J", "ended")),
    Case("writing from right to left in `created`", set_manifest("\u202e", "created"), MANIFEST),
    Case("manifest that is a list", as_manifest(lambda text: "[]"), MANIFEST),
    Case("manifest that is empty", as_manifest(lambda text: ""), MANIFEST),
    Case("manifest that is null", as_manifest(lambda text: "null"), MANIFEST),
    Case("info that is a list", as_info(lambda text: "[]")),
    Case("info that is empty", as_info(lambda text: "")),
    Case("info that is a number", as_info(lambda text: "1")),
    Case("header without a document", as_header(lambda h: h.replace(b'"dualform"', b'"dualForm"'))),
    Case("header without a digest", as_header(lambda h: h.replace(b'"digest"', b'"Digest"'))),
    Case("header in UTF-16", as_header(lambda h: h.decode().encode("utf-16"))),
    Case("header not in UTF-8", as_header(lambda h: h.replace(b"audit", b"aud\xff\xfe"))),
    Case("header not in JSON", as_header(lambda h: b"{audit}" + h[7:])),
    Case("table of lists", entries(lambda entry: list(entry.values()))),
    Case("table of lists in the first shard", entries(lambda entry: list(entry.values()), shard=0), FIRST),
    Case("table with more than it needs", entries(lambda entry: {**entry, "x": nested(40)})),
]
