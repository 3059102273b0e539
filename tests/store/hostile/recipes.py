"""Runs of recipes that lie: columns that are said to be another layer's, passes that never were, states of no shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.store.hostile.edits import FIRST, LAST, MANIFEST, Case, Edit, poke, replace, set_info, set_manifest
from tests.store.hostile.forge import Forged


def _same(value: Any, shard: int = 1) -> Edit:
    """Other names for columns of tags: those of `inner` are there, those of `outer` not again."""
    return set_info(value, "same", shard=shard)


def _also_same(name: Any, other: Any) -> Edit:
    def edit(forged: Forged) -> None:
        forged.shards[1].info["same"] |= {name: other}

    return edit


def _carried(**tensors: Any) -> Edit:
    """Another state in place of what is handed on; two underscores are a slash."""

    def edit(forged: Forged) -> None:
        shard = forged.shards[1]
        kept = {name: one for name, one in shard.tensors.items() if not name.startswith("state/carried/")}
        shard.tensors = kept | {f"state/carried/{name}": one for name, one in tensors.items()}

    return edit


def _without_tags(forged: Forged) -> None:
    for shard in forged.shards[1:]:
        shard.info |= {"tags": {}, "same": {}}
        shard.tensors = {n: one for n, one in shard.tensors.items() if not n.startswith(("tags/", "text"))}


def _all_stored(forged: Forged) -> None:
    for layer in forged.manifest["layers"]:
        layer["stored"] = True


def _without_middle_state(forged: Forged) -> None:
    tensors = forged.shards[1].tensors
    forged.shards[1].tensors = {name: one for name, one in tensors.items() if not name.startswith("state/")}


_NO_SAMES: Sequence[Any] = (None, [], "x", 1, {}, {"tags/inner/id": "tags/outer/nothing"}, {"x": "y"})
_NO_RECIPES: Sequence[Any] = (None, {}, [], "x", 1, {"seed": 0, "threads": 1, "optimizers": 1, "model": "x"})
_ONE = np.ones(2, dtype=np.float32)

RECIPES = [
    *(
        Case(f"columns the same as {value!r}", _same(value), run="recipe")
        for value in _NO_SAMES
    ),
    *(
        Case(f"{name!r} the same as {other!r}", _also_same(name, other), run="recipe")
        for name, other in (
            ("tags/x/id", "tags/inner/id"), ("tags/x/id", "tags/x/id"), ("tags/inner/id", "tags/outer/id"),
            ("tags/inner/id", None), ("tags/inner/id", ["tags/outer/id"]), ("tags/inner/id", {"a": 1}),
            ("tags/inner/id", 3), ("tags/outer/id", "tags/inner/t"), ("tags/outer/id", "untagged/inner/id"),
            ("slots/outer/keys", "tags/inner/id"), ("tags/inner/colour", "tags/inner/id"), ("tags", "tags/inner/id"),
            ("state/x", "state/parameters/inner.weight"), ("audit/x", "audit/inner"),
            ("untagged/x/id", "tags/inner/id"),
            ("slots/inner/values", "slots/outer/values"), ("tags/\x1b[2J/id", "tags/inner/id"),
        )
    ),
    *(
        Case(f"{threads!r} threads", set_manifest(threads, "recipe", "threads"), MANIFEST, run="recipe")
        for threads in (0, -1, 4097, 10**9, 10**30, 1.5, True, "1", None)
    ),
    *(
        Case(f"{count!r} optimisers of a recipe", set_manifest(count, "recipe", "optimizers"), MANIFEST, run="recipe")
        for count in (0, 2, 10**9, 10**30, "1", None)
    ),
    *(
        Case(f"seed {seed!r}", set_manifest(seed, "recipe", "seed"), MANIFEST, run="recipe")
        for seed in (-1, 1.5, None, "0", True)
    ),
    Case("a seed of many digits", set_manifest(10**4000, "recipe", "seed"), MANIFEST, "recipe", refused=False),
    *(
        Case(f"a recipe that is {recipe!r}", set_manifest(recipe, "recipe"), MANIFEST, run="recipe")
        for recipe in _NO_RECIPES
    ),
    Case("a recipe of several processes", set_manifest(2, "world"), MANIFEST, run="recipe"),
    Case("slots that are to be made again, of no recipe", set_manifest(False, "layers", 0, "stored"), MANIFEST),
    Case("slots that are stored, and are not", _all_stored, run="recipe"),
    Case("slots that are not stored, and are", set_manifest(False, "layers", 1, "stored"), run="recipe"),
    Case("nothing that says how many slots there are", _without_tags, run="recipe"),
    *(
        Case(f"{name} = {value}", poke(f"slots/inner/{name}", value), run="recipe")
        for name in ("pass_rows", "pass_step")
        for value in (-1, 3, 2**31, 2**62, 2**63 - 1)
    ),
    Case("a pass of no rows that are made again", poke("slots/inner/pass_rows", 0), run="recipe"),
    Case("passes in rows", replace("slots/inner/pass_step", lambda steps: steps[:, None]), run="recipe"),
    Case("a pass too many", replace("slots/inner/pass_rows", lambda r: np.concatenate([r, r])), run="recipe"),
    *(
        Case(f"extents of {extent} of maps that are made again", poke("slots/0/extents", extent), run="maps_made")
        for extent in (-1, 0, 2**62, 2**63 - 1)
    ),
    *(
        Case(
            f"extents of {extent} of maps that are made again",
            poke("slots/0/extents", extent),
            run="maps_made",
            refused=False,
        )
        for extent in (1, 3, 7, 2**31)
    ),
    *(
        Case(f"{name} {what}", replace(f"witness/{name}", change), run="recipe")
        for name in ("losses", "batches")
        for what, change in {
            "too long": lambda c: np.concatenate([c, c]), "empty": lambda c: c[:0], "deep": lambda c: c[None],
            "as others": lambda c: c.astype(np.float32), "flat": lambda c: c.reshape(()),
        }.items()
    ),
    *(
        Case(f"loss {loss}", poke("witness/losses", loss), run="recipe", refused=False)
        for loss in (float("nan"), float("inf"), -1e308)
    ),
    Case("another batch", poke("witness/batches", -(2**63)), run="recipe", refused=False),
    *(
        Case(f"a state of {[*tensors]}", _carried(**tensors), run="recipe")
        for tensors in (
            {"x": _ONE}, {"value": _ONE, "value/0": _ONE}, {"value/0": _ONE, "value/0/0": _ONE}, {"value/1": _ONE},
            {"value/0": _ONE, "value/2": _ONE}, {"value/00": _ONE}, {"value/-1": _ONE}, {"value/x": _ONE},
            {"value/": _ONE}, {"value//0": _ONE}, {"value/0/": _ONE}, {"valuefoo": _ONE}, {"value/\u0663": _ONE},
            {"value/1.0": _ONE}, {"value/0" + "/0" * 3000: _ONE}, {"value/99999999999999999999": _ONE}, {"": _ONE},
        )
    ),
    *(
        Case(f"a state of other {[*tensors]}", _carried(**tensors), run="recipe", refused=False)
        for tensors in (
            {}, {"value": _ONE}, {"value/0": _ONE}, {"value/0": _ONE.astype(np.int8), "value/1/0": _ONE[:0]},
            {"value" + "/0" * 90: _ONE},
        )
    ),
    Case("a state handed on in a loop of one's own", _carried(value=_ONE)),
    Case("a middle without state", _without_middle_state, run="recipe", refused=False),
    Case("the same in the first shard", _same({"tags/inner/id": "tags/outer/id"}, shard=0), FIRST, "recipe"),
    Case("the same in the last shard", _same({"x": "y"}, shard=2), LAST, "recipe"),
]  # fmt: skip
