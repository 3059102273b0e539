"""Layers, optimisers, tags, steps and places that no recording ever had."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.store.hostile.edits import (
    FIRST,
    LAST,
    MANIFEST,
    SECOND,
    Case,
    Edit,
    replace,
    set_info,
    set_manifest,
    set_texts,
)
from tests.store.hostile.forge import Forged


def all_tags(tags: dict[str, Any], columns: Callable[[str], Any]) -> Edit:
    """Other tags in every shard with slots."""

    def edit(forged: Forged) -> None:
        for shard in forged.shards[1:]:
            for name in [name for name in shard.tensors if name.startswith(("tags/", "text"))]:
                del shard.tensors[name]
            shard.info["tags"] = tags
            slots = len(shard.tensors["slots/0/values"])
            for tag in tags:
                shard.tensors[f"tags/0/{tag}"] = np.zeros(slots, dtype=columns(tag))

    return edit


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

    return edit


def _text_ends(ends: list[int]) -> Edit:
    return replace("text_ends/s", lambda _: np.array(ends))


def _two_layers_of_one_name(forged: Forged) -> None:
    forged.manifest["layers"] *= 2


def _same_parameter_twice(forged: Forged) -> None:
    forged.manifest["layers"][0]["uses"] *= 2


def _unused_parameter(forged: Forged) -> None:
    forged.manifest["parameters"].append({"name": "other", "shape": [1], "optimizer": None})


def _two_parameters_of_one_name(forged: Forged) -> None:
    forged.manifest["parameters"] *= 2


def _of_geometry(part: str, value: Any, file: str) -> Case:
    edit = set_manifest(value, "layers", 0, "keys", "geometry", part)
    return Case(f"{part} {value!r} of a convolution", edit, file, "maps")


def _with_extent(forged: Forged, extent: int) -> None:
    forged.shards[1].tensors["slots/0/extents"][:] = extent


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
    Case("layer without uses", set_manifest([], "layers", 0, "uses"), MANIFEST),
    Case("layer of an unknown kind", set_manifest("Conv2d", "layers", 0, "kind"), MANIFEST),
    *(
        Case(f"columns {columns}", set_manifest(columns, "layers", 0, "uses", 0, "columns"), MANIFEST)
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
        Case(f"optimiser {number!r} of a parameter", set_manifest(number, "parameters", 0, "optimizer"), MANIFEST)
        for number in (1, -1, 10**30, None, "0", True)
    ),
    Case("no parameters", set_manifest([], "parameters"), MANIFEST),
    Case("a parameter that nobody uses", _unused_parameter, MANIFEST),
    Case("two parameters of one name", _two_parameters_of_one_name, MANIFEST),
    *(
        Case(f"a parameter of shape {shape!r}", set_manifest(shape, "parameters", 0, "shape"), MANIFEST)
        for shape in ([0, 2], [-1, 2], [True, 2], ["1", 2], [1.0, 2])
    ),
    *(
        Case(f"a parameter of shape {shape!r}", set_manifest(shape, "parameters", 0, "shape"), FIRST)
        for shape in ([], [1], [2, 1], [1, 2, 1], [1, 10**30])
    ),
    *(
        Case(f"keys {keys!r}", set_manifest(keys, "layers", 0, "keys"), MANIFEST)
        for keys in ({"width": 1, "index": False}, {"width": 2, "index": True}, {"width": 0, "index": False}, {}, None)
    ),
    *(
        _of_geometry(part, value, MANIFEST)
        for part in ("kernel", "stride", "dilation", "before", "after")
        for value in ([0], [-1], [], [1, 1], [1.0], ["1"], [True], [10**18], [10**30], None, 1)
        if part not in ("before", "after") or value != [0]
    ),
    *(
        _of_geometry(part, value, SECOND)
        for part in ("stride", "dilation", "before", "after")
        for value in ([2], [3], [10**9])
    ),
    Case("a convolution without its geometry", set_manifest(None, "layers", 0, "keys", "geometry"), MANIFEST, "maps"),
    Case("a border nobody knows", set_manifest("wrap", "layers", 0, "keys", "geometry", "mode"), MANIFEST, "maps"),
    *(
        Case(f"{groups!r} groups", set_manifest(groups, "layers", 0, "uses", 0, "groups"), MANIFEST, run)
        for run in ("linear", "maps", "diagonal")
        for groups in (0, -1, 5, 1.0, "1", None, 10**30)
    ),
    *(
        Case(f"maps of {extent} pixels", partial(_with_extent, extent=extent), SECOND, "maps")
        for extent in (-1, 0, 1, 3, 4, 2**31, 2**62)
    ),
    Case("no optimisers", set_manifest([], "optimizers"), MANIFEST),
    Case("an optimiser of tomorrow", set_manifest("Muon", "optimizers", 0, "kind"), MANIFEST, says="Muon"),
    Case("columns of another optimiser", set_manifest("Adam", "optimizers", 0, "kind"), MANIFEST, says="Adam"),
    Case("columns in another order", lambda forged: forged.manifest["optimizers"][0]["columns"].reverse(), MANIFEST),
    Case("linear columns for Adam", set_manifest("SGD", "optimizers", 0, "kind"), MANIFEST, "adam"),
    Case("Embedding said to be Linear", set_manifest("Linear", "layers", 0, "kind"), MANIFEST, "embedding"),
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
    Case("a tag called 'a/b'", all_tags({"a/b": "int"}, lambda tag: np.int8)),
    Case("a kind of tag nobody knows", set_info("date", "tags", "i")),
    Case("a tag that is not there", set_info("int", "tags", "j")),
    Case("a tag of another kind from a shard on", set_info("float", "tags", "i", shard=2), LAST),
    Case("a string tag without its texts", lambda forged: forged.shards[1].tensors.__delitem__("texts/s")),
    Case("a string tag without the ends of its texts", lambda forged: forged.shards[1].tensors.pop("text_ends/s")),
    Case("too few texts", set_texts(["a"])),
    Case("texts of half a character", set_texts([b"\xc3", b"\xa9"])),
    Case("texts of half a surrogate pair", set_texts(["a", b"\xed\xb3\xa9"])),
    *(Case(f"texts that end at {ends}", _text_ends(ends)) for ends in ([2, 1], [-1, 2], [1, 3], [1, 1], [1, 2**62])),
    Case("texts as other numbers", replace("texts/s", lambda content: content.astype(np.int8))),
    Case("ends of texts in rows", replace("text_ends/s", lambda ends: ends[:, None])),
    Case("texts of a tag that is not there", set_texts(["a"], "j")),
    Case("texts with NUL", set_texts(["a\0", "a\0\0"]), refused=False),
    Case("equal texts", set_texts(["a", "a"]), refused=False),
    Case("texts in no order", set_texts(["b", "a"]), refused=False),
]


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
