"""How slots without a value of a tag are stored."""

from typing import Any

from dualform.store import InMemory, Run
from tests.slots.untagged import KINDS, LAYER, Slot, write

WHOLE: Slot = (7, 0.5, True, "red")
EMPTY: Slot = (None, None, None, None)


def stored(*batches: list[Slot]) -> list[dict[str, Any]]:
    """The tensors about tags in each shard, which has a batch."""
    backend = InMemory()
    write(backend, batches, [True] * len(batches))
    prefixes = (f"tags/{LAYER}/", f"untagged/{LAYER}/")
    return [
        {name: shard[name].tolist() for prefix in prefixes for name in shard.names(prefix)}
        for _, shard in Run(backend).chapters
    ]


def test_only_what_is_missing_takes_room() -> None:
    whole, partly, none = stored([WHOLE], [EMPTY, WHOLE, (None, 0.5, True, "red")], [EMPTY])
    assert {*whole} == {f"tags/{LAYER}/{tag}" for tag in KINDS}
    assert {*partly} == {*none} == {f"{what}/{LAYER}/{tag}" for what in ("tags", "untagged") for tag in KINDS}
    assert partly["untagged/fc/id"] == [True, False, True]
    assert partly["untagged/fc/colour"] == [True, False, False]
    assert (partly["tags/fc/id"], partly["tags/fc/share"]) == ([0, 7, 0], [0.0, 0.5, 0.5])
    assert (partly["tags/fc/odd"], partly["tags/fc/colour"]) == ([False, True, True], [0, 0, 0])


def test_a_text_that_no_slot_has_is_not_stored() -> None:
    backend = InMemory()
    write(backend, [[WHOLE], [EMPTY]], [True, True])
    assert [shard.strings("colour").tolist() for _, shard in Run(backend).chapters] == [["red"], []]
