"""What is done to a run to make it hostile: a signed edit, after which all checksums fit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tests.store.hostile.forge import LEFT_OUT, Forged

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


def set_manifest(value: Any, *place: Any) -> Edit:
    return lambda forged: put(forged.manifest, place, value)


def set_info(value: Any, *place: Any, shard: int = 1) -> Edit:
    return lambda forged: put(forged.shards[shard].info, place, value)


def set_texts(texts: Sequence[str | bytes], tag: str = "s", shard: int = 1) -> Edit:
    """Other texts of a tag, or bytes that are none."""

    def edit(forged: Forged) -> None:
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        forged.shards[shard].tensors |= {
            f"texts/{tag}": np.frombuffer(b"".join(encoded), dtype=np.uint8).copy(),
            f"text_ends/{tag}": np.cumsum([len(text) for text in encoded], dtype=np.int64),
        }

    return edit


def file_of_shard(shard: int) -> str:
    return (FIRST, SECOND, LAST)[shard]


def poke_number(shard: int, name: str, value: Any, at: int, forged: Forged) -> None:
    tensor = forged.shards[shard].tensors[name]
    with np.errstate(over="ignore"):
        tensor.reshape(-1)[at] = value if tensor.dtype.kind == "f" else np.array(value, np.int64).astype(tensor.dtype)


def poke_byte(shard: int, name: str, value: int, forged: Forged) -> None:
    forged.shards[shard].tensors[name].view(np.uint8)[0] = value


def poke(name: str, value: Any, at: int = 0, shard: int = 1) -> Edit:
    return partial(poke_number, shard, name, value, at)


def replace(name: str, change: Callable[[Any], Any], shard: int = 1) -> Edit:
    def edit(forged: Forged) -> None:
        forged.shards[shard].tensors[name] = change(forged.shards[shard].tensors[name])

    return edit
