"""Hostile files as data: what is done to which run, and which file has to be named.

A signed edit has fitting checksums all over, so that only what is behind them can refuse it. Families are made
from the run itself: every key of its documents, every tensor, every number.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tests.hostile.forge import LEFT_OUT, SIZES, Forged, Raw

FILES = MANIFEST, FIRST, SECOND, LAST = ("manifest.json", *(f"shard-{i:06d}.safetensors" for i in range(3)))
Edit = Callable[[Forged], None]


@dataclass(frozen=True)
class Case:
    """A signed edit of a run. `refused`: somebody has to complain; else answers will do, whatever they are."""

    name: str
    edit: Edit
    file: str = SECOND
    run: str = "linear"
    refused: bool = True
    says: str = ""


# Documents


WRONG: Sequence[Any] = (None, [], {}, "x", "", -1, 0, 1.5, True, 10**30, float("nan"), [[]], {"x": []}, "\x1b[2J", "\0")


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every node of a JSON document but its root."""
    steps = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for step, child in steps:
        yield (*at, step)
        yield from places(child, (*at, step))


def put(document: Any, place: Sequence[Any], value: Any) -> None:
    *way, last = place
    for step in way:
        document = document[step]
    if value is LEFT_OUT:
        del document[last]
    else:
        document[last] = value


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


def set_manifest(value: Any, *place: Any) -> Edit:
    return lambda forged: put(forged.manifest, place, value)


def set_info(value: Any, *place: Any, shard: int = 1) -> Edit:
    return lambda forged: put(forged.shards[shard].info, place, value)


def all_tags(tags: dict[str, Any], columns: Callable[[str], Any]) -> Edit:
    """Other tags in every shard with slots."""

    def edit(forged: Forged) -> None:
        for shard in forged.shards[1:]:
            for name in [name for name in shard.tensors if name.startswith("tags/")]:
                del shard.tensors[name]
            shard.info["tags"], shard.info["strings"] = tags, {}
            slots = len(shard.tensors["slots/0/values"])
            for tag in tags:
                shard.tensors[f"tags/0/{tag}"] = np.zeros(slots, dtype=columns(tag))

    return edit


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
    "d_in", "d_out", "parts", "columns", "about", "crc32",
)  # fmt: skip
_KEYS_OF_AN_INFO = (
    "version", "run", "index", "previous", "first_step", "last_step", "tags", "i", "strings", "ended", "crc32",
    "audit/0",
)  # fmt: skip

DOCUMENTS = [
    Case("manifest of a newer version", set_manifest(2, "version"), MANIFEST, says="upgrade"),
    *(
        Case(f"manifest of version {version!r}", set_manifest(version, "version"), MANIFEST, says="version")
        for version in (0, "1", 1.0, True, None, 10**30, [1])
    ),
    Case("shard of a newer version", set_info(2, "version"), says="upgrade"),
    *(
        Case(f"shard of version {version!r}", set_info(version, "version"), says="version")
        for version in (0, "1", 1.0, True, None, 10**30)
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
    Case("part with a key nobody knows", set_manifest(1, "layers", 0, "parts", 0, "x"), MANIFEST, says="'x'"),
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
    *(Case(f"strings {depth} deep", set_info(nested(depth), "strings", "0/s")) for depth in (1, 450, 900)),
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


# Layers, optimisers, tags


def _rename(name: str) -> Edit:
    """The layer by another name, everywhere."""

    def edit(forged: Forged) -> None:
        forged.manifest["layers"][0]["name"] = name
        for shard in forged.shards:
            for prefix in ("slots", "tags", "audit"):
                shard.tensors = {
                    (f"{prefix}/{name}{key.removeprefix(f'{prefix}/0')}" if key.startswith(f"{prefix}/0") else key): one
                    for key, one in shard.tensors.items()
                }
            shard.info["strings"] = {f"{name}{k.removeprefix('0')}": v for k, v in shard.info["strings"].items()}

    return edit


def _two_layers_of_one_name(forged: Forged) -> None:
    forged.manifest["layers"] *= 2


def _same_parameter_twice(forged: Forged) -> None:
    forged.manifest["layers"][0]["parts"] *= 2


def _wide(forged: Forged) -> None:
    """A layer of absurd width, whose weight says nothing of most of it."""
    forged.manifest["layers"][0]["d_in"] = 2**40
    for shard in forged.shards[1:]:
        for name in [n for n in shard.tensors if n.startswith(("slots/", "tags/"))]:
            del shard.tensors[name]


LAYERS = [
    *(
        Case(f"layer called {name!r}", _rename(name), MANIFEST, refused=False)
        for name in ("", "a/b", "../../etc/passwd")
    ),
    *(Case(f"layer called {name!r}", _rename(name), MANIFEST) for name in ("\0", "\x1b[2J", "a\nb", "\u202e", "\x7f")),
    Case("no layers", set_manifest([], "layers"), MANIFEST),
    Case("two layers of one name", _two_layers_of_one_name, MANIFEST),
    Case("a parameter that is there twice", _same_parameter_twice, MANIFEST),
    Case("layer of no width", set_manifest(0, "layers", 0, "d_in"), MANIFEST),
    Case("layer of no units", set_manifest(0, "layers", 0, "d_out"), MANIFEST),
    Case("layer of absurd width", _wide, MANIFEST),
    Case("layer without parts", set_manifest([], "layers", 0, "parts"), MANIFEST),
    Case("layer of an unknown kind", set_manifest("Conv2d", "layers", 0, "kind"), MANIFEST),
    *(
        Case(f"columns {columns}", set_manifest(columns, "layers", 0, "parts", 0, "columns"), MANIFEST)
        for columns in (
            [0, 3],
            [-1, 2],
            [1, 0],
            [0, 0],
            [0],
            [0, 1, 2],
            ["0", 2],
            [0.0, 2],
            [False, 2],
            None,
            [0, 10**30],
            [0, 1],
            [1, 2],
        )
    ),
    *(
        Case(f"optimiser {number!r} of a part", set_manifest(number, "layers", 0, "parts", 0, "optimizer"), MANIFEST)
        for number in (1, -1, 10**30, None, "0", True)
    ),
    Case("no optimisers", set_manifest([], "optimizers"), MANIFEST),
    Case("an optimiser of tomorrow", set_manifest("Muon", "optimizers", 0, "kind"), MANIFEST, says="Muon"),
    Case("columns of another optimiser", set_manifest("Adam", "optimizers", 0, "kind"), MANIFEST, says="Adam"),
    Case("columns in another order", lambda forged: forged.manifest["optimizers"][0]["columns"].reverse(), MANIFEST),
    Case("linear columns for Adam", set_manifest("SGD", "optimizers", 0, "kind"), MANIFEST, "adam"),
    Case("Embedding said to be Linear", set_manifest("Linear", "layers", 0, "kind"), FIRST, "embedding"),
    Case("Linear said to be an Embedding", set_manifest("Embedding", "layers", 0, "kind"), MANIFEST),
    Case("merged by a tag that is not there", set_manifest("j", "storage", "merge"), SECOND, "merged"),
    Case("merged and with values", set_manifest(True, "storage", "values"), MANIFEST, "merged"),
    Case("values said to be there", set_manifest(True, "storage", "values"), SECOND, "keys_only", refused=False),
    Case("another precision", set_manifest("float64", "storage", "dtype"), SECOND),
    Case("half precision said of single", set_manifest("float16", "storage", "dtype"), SECOND, "keys_only"),
    *(
        Case(f"a tag called {name!r}", all_tags({name: "int"}, lambda tag: np.int8))
        for name in ("slot", "step", "query", "rank", "score", "coefficient", "visits", "\x1b[2J")
    ),
    Case("a tag called ''", all_tags({"": "int"}, lambda tag: np.int8), refused=False),
    Case("a tag called 'total'", all_tags({"total": "int"}, lambda tag: np.int8), refused=False),
    Case("a tag called 'a/b'", all_tags({"a/b": "int"}, lambda tag: np.int8), refused=False),
    Case("a kind of tag nobody knows", set_info("date", "tags", "i")),
    Case("a tag that is not there", set_info("int", "tags", "j")),
    Case("a tag of another kind from a shard on", set_info("float", "tags", "i", shard=2), LAST),
    Case("a string tag without its texts", set_info({}, "strings")),
    Case("too few texts", set_info(["a"], "strings", "0/s")),
    Case("texts that are numbers", set_info([1, 2], "strings", "0/s")),
    Case("texts of a tag that is not there", set_info(["a"], "strings", "0/j"), refused=False),
    Case("texts with NUL", set_info(["a\0", "a\0\0"], "strings", "0/s"), refused=False),
    Case("equal texts", set_info(["a", "a"], "strings", "0/s"), refused=False),
    Case("texts in no order", set_info(["b", "a"], "strings", "0/s"), refused=False),
]


# Steps, places, runs


def _swapped(forged: Forged) -> None:
    forged.shards[1], forged.shards[2] = forged.shards[2], forged.shards[1]


def _renumbered(forged: Forged) -> None:
    _swapped(forged)
    forged.shards[1].info["index"], forged.shards[2].info["index"] = 1, 2


def _without_state(forged: Forged, shard: int) -> None:
    tensors = forged.shards[shard].tensors
    forged.shards[shard].tensors = {name: one for name, one in tensors.items() if not name.startswith("state/")}


STEPS = [
    *(
        Case(f"{name} {value}", set_info(value, name))
        for name in ("first_step", "last_step")
        for value in (-1, 5, 10**18, 10**30)
    ),
    Case("a shard that ends before it begins", set_info(0, "last_step", shard=2), LAST),
    Case("a first shard with steps", set_info(1, "last_step", shard=0), FIRST),
    Case("a shard after a million steps", set_info(10**6, "first_step", shard=2), LAST),
    Case("no steps, and tensors for them", set_info(0, "last_step")),
    *(Case(f"index {value}", set_info(value, "index")) for value in (0, 2, -1, 10**30)),
    Case("the name of another run", set_info("x", "run")),
    Case("a link to nothing", set_info("00000000", "previous")),
    Case("two shards swapped", _swapped),
    Case("two shards swapped and renumbered", _renumbered),
    Case("a first shard without state", partial(_without_state, shard=0), FIRST),
    Case("a shard without state", partial(_without_state, shard=1), refused=False),
    Case("Adam, and a shard without state", partial(_without_state, shard=1), SECOND, "adam", refused=False),
]


# Tensors


def tensor_cases(run: str, tensors: dict[str, Any]) -> Iterator[Case]:
    """Each tensor of a shard in every dtype there is, missing, longer, shorter, in other shapes."""
    for name, tensor in tensors.items():
        raw = Raw.of(tensor)
        for dtype, size in SIZES.items():
            if dtype != raw.dtype:
                other = Raw(dtype, raw.shape, bytes(tensor.size * size))
                yield _with(run, f"as {dtype}", name, other)
        yield _with(run, "missing", name, LEFT_OUT)
        yield _with(run, "doubled", name, np.concatenate([tensor, tensor]) if tensor.ndim else tensor.repeat(2))
        yield _with(
            run,
            "halved",
            name,
            tensor[: len(tensor) // 2]
            if tensor.ndim
            else tensor.reshape(0, 1)[:0]
            if not tensor.size
            else tensor.reshape(1)[:0],
        )
        yield _with(run, "empty", name, tensor.reshape(-1)[:0])
        yield _with(run, "flat", name, tensor.reshape(-1))
        yield _with(run, "a row", name, tensor.reshape(1, -1))
        yield _with(run, "transposed", name, tensor.T)
        yield _with(run, "one deeper", name, tensor[None])
        for shape in ([0, 2**62], [2**62, 0], [0] * 100, [2**64 - 1, 0], [0, 2**63]):
            yield _with(run, f"of shape {str(shape)[:30]}", name, Raw(raw.dtype, shape, b""))
        yield _with(run, "of 100 dimensions", name, Raw(raw.dtype, [1] * 99 + [tensor.size], raw.content))


def _with(run: str, what: str, name: str, tensor: Any) -> Case:
    def edit(forged: Forged) -> None:
        put(forged.shards[1].tensors, [name], tensor)

    return Case(f"{name} {what}", edit, SECOND, run, refused=False)


FLOATS = (np.nan, np.inf, -np.inf, 1e308, -1.0, 0.0, 1.0)
INTEGERS = (-1, 0, 1, 2, 7, 2**15 - 1, -(2**15), 2**31, 2**62, 2**63 - 1, -(2**63))


def number_cases(run: str, shard: int, tensors: dict[str, Any]) -> Iterator[Case]:
    """Every number of a shard, replaced by each of those that make trouble."""
    for name, tensor in tensors.items():
        if tensor.dtype == np.bool_:
            yield Case(f"{name} = 2 for true", partial(_poke_byte, shard, name, 2), _file(shard), run, refused=False)
        for value in FLOATS if tensor.dtype.kind == "f" else INTEGERS if tensor.dtype.kind == "i" else ():
            for at in range(tensor.size):
                edit = partial(_poke, shard, name, value, at)
                yield Case(f"{name}[{at}] = {value}", edit, _file(shard), run, refused=False)


def _file(shard: int) -> str:
    return (FIRST, SECOND, LAST)[shard]


def _poke(shard: int, name: str, value: Any, at: int, forged: Forged) -> None:
    tensor = forged.shards[shard].tensors[name]
    with np.errstate(over="ignore"):
        tensor.reshape(-1)[at] = value if tensor.dtype.kind == "f" else np.array(value, np.int64).astype(tensor.dtype)


def _poke_byte(shard: int, name: str, value: int, forged: Forged) -> None:
    forged.shards[shard].tensors[name].view(np.uint8)[0] = value


def poke(name: str, value: Any, at: int = 0, shard: int = 1) -> Edit:
    return partial(_poke, shard, name, value, at)


def replace(name: str, change: Callable[[Any], Any], shard: int = 1) -> Edit:
    def edit(forged: Forged) -> None:
        forged.shards[shard].tensors[name] = change(forged.shards[shard].tensors[name])

    return edit


def _zeros(name: str, shape: tuple[int, ...]) -> Edit:
    return replace(name, lambda tensor: np.zeros(shape, np.float32))


def _of_no_slots(forged: Forged) -> None:
    """A layer that is there with no slots at all."""
    for name, tensor in forged.shards[1].tensors.items():
        if name.startswith(("slots/", "tags/")):
            forged.shards[1].tensors[name] = tensor[:0]


def _a_pass_of_nothing(forged: Forged) -> None:
    tensors = forged.shards[2].tensors
    for name, value in (("pass_step", 1), ("pass_rows", 0), ("factors", 1.0)):
        column = tensors[f"slots/0/{name}"]
        tensors[f"slots/0/{name}"] = np.concatenate([np.full_like(column[:1], value), column])


def _misplaced(forged: Forged) -> None:
    """Tensors that begin in the middle of a number."""
    shard = forged.shards[1]
    shard.tensors = {"state/buffers/x": np.zeros(1, np.int8), **shard.tensors}


def _many_long_texts(forged: Forged) -> None:
    """Texts of fixed width would take as much room as there are texts, times the longest."""
    shard = forged.shards[1]
    shard.info["strings"]["0/s"] = ["a" * 1_000_000, *(str(number) for number in range(4_000))]


NUMBERS = [
    Case("a pass of -1 slots", poke("slots/0/pass_rows", -1)),
    Case("a pass of 2^62 slots", poke("slots/0/pass_rows", 2**62)),
    Case("passes that do not add up", poke("slots/0/pass_rows", 1)),
    Case("a pass of no slots", _a_pass_of_nothing, LAST),
    Case("Adam, and a pass of no slots", _a_pass_of_nothing, LAST, "adam"),
    Case("no slots at all", _of_no_slots),
    Case("a pass before the shard", poke("slots/0/pass_step", -1)),
    Case("a pass after the shard", poke("slots/0/pass_step", 1)),
    Case("passes that go back in time", replace("slots/0/pass_step", lambda steps: steps[::-1], shard=2), LAST),
    Case("key -1", poke("slots/0/key_index", -1)),
    Case("a key that is not there", poke("slots/0/key_index", 2)),
    Case("a key of a later shard", poke("slots/0/key_index", 3)),
    Case("a one-hot key at -1", poke("slots/0/keys", -1), run="embedding"),
    Case("a one-hot key beyond the last", poke("slots/0/keys", 3), run="embedding"),
    Case("text -1", poke("tags/0/s", -1)),
    Case("a text that is not there", poke("tags/0/s", 2)),
    Case("a truth that is 2", partial(_poke_byte, 1, "tags/0/t", 2)),
    Case("a visit that never came", poke("slots/0/visits", 0), run="merged"),
    Case("fewer visits than none", poke("slots/0/visits", -5), run="merged"),
    Case("2^62 visits", poke("slots/0/visits", 2**62), run="merged"),
    Case("an exponent of 32767", poke("slots/0/value_exponent", 32767)),
    Case("an exponent of -32768", poke("slots/0/key_exponent", -32768)),
    Case("tensors that are not aligned", _misplaced, refused=False),
    Case("many texts, one of them long", _many_long_texts, refused=False),
    Case("a tensor nobody knows", lambda forged: put(forged.shards[1].tensors, ["x"], np.zeros(1))),
    Case(
        "a tensor called like a terminal's escapes",
        lambda f: put(f.shards[1].tensors, ["state/buffers/\x1b[2J"], np.zeros(1)),
    ),
    *(
        Case(
            f"momentum of shape {shape}",
            _zeros("state/optimizers/0/0.weight/momentum_buffer", shape),
        )
        for shape in ((1,), (2, 1), (3, 5), (0,), (1, 2, 1))
    ),
    Case(
        "momentum in whole numbers",
        replace("state/optimizers/0/0.weight/momentum_buffer", lambda m: m.astype(np.int32)),
    ),
    *(
        Case(
            f"{entry} of shape {shape}",
            _zeros(f"state/optimizers/0/0.weight/{entry}", shape),
            SECOND,
            "adam",
        )
        for entry in ("exp_avg", "exp_avg_sq")
        for shape in ((1,), (3, 5), (0,))
    ),
    Case(
        "Adagrad without its sums",
        lambda f: put(f.shards[1].tensors, ["state/optimizers/0/0.weight/sum"], LEFT_OUT),
        SECOND,
        "adagrad",
    ),
    Case("Adam, and a weight decay of 1e308", poke("ledger/0.weight", 1e308, 3), SECOND, "adam", says="too large"),
    Case("Adam, and a count of -1", poke("ledger/0.weight", -1.0, 9), SECOND, "adam", refused=False),
    Case("Adam, and a beta of 1", poke("ledger/0.weight", 1.0, 7), SECOND, "adam", refused=False),
    Case("Adam, and a beta of 1e308", poke("ledger/0.weight", 1e308, 8), SECOND, "adam", refused=False),
    Case(
        "weights of another precision from a shard on",
        replace("state/parameters/0.weight", lambda w: w.astype(np.float64)),
        refused=False,
    ),
]

SIGNED = [*DOCUMENTS, *LAYERS, *STEPS, *NUMBERS]

NO_FILES_OF_ITS_OWN: Sequence[Any] = (
    "../outside.npy", "../../etc/passwd", "/etc/passwd", "/dev/zero", "a/b.npy", "a\\b.npy", "C:x.npy", "", ".", "..",
    "x\0.npy", "\x1b[2J.npy", "a\nb.npy", "x" * 300 + ".npy", "link.npy", "endless.npy", "directory.npy",
    "pipe.npy", None, 1, ["x.npy"], {"x": 1},
)  # fmt: skip
