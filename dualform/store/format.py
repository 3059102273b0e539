"""The words of the on-disk format: what a manifest says, what the tensors of a shard are called.

docs/format.md tells the same story for people. Nothing here touches a file.
"""

import json
import zlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

VERSION = 1
MANIFEST = "manifest.json"
LOCK = "writer.lock"
_WRAPPERS = ("_orig_mod.", "module.")
DTYPES = ("float16", "float32", "float64")
KINDS = ("Linear", "Embedding", "LSTM")
RESERVED = ("slot", "step", "query", "rank", "score", "coefficient", "visits")  # columns of every table, never tags
EXPONENTS = range(-126, 128)  # of the powers of two that a float32 has


def clean_name(name: str) -> str:
    """A module's or parameter's name without what torch.compile and parallel wrappers put before it."""
    for wrapper in _WRAPPERS:
        while name.startswith(wrapper):
            name = name.removeprefix(wrapper)
    return name.replace("._orig_mod", "")


def shard_name(index: int) -> str:
    return f"shard-{index:06d}.safetensors"


@dataclass(frozen=True)
class Part:
    """One parameter of a layer: which columns of the key it multiplies. A bias has none: its key is 1."""

    parameter: str
    columns: tuple[int, int] | None
    optimizer: int | None  # None: the parameter is constant

    @property
    def is_bias(self) -> bool:
        return self.columns is None

    @property
    def trained(self) -> bool:
        return self.optimizer is not None


@dataclass(frozen=True)
class Layer:
    """A recorded linear map and its parameters; the first part is a trained weight."""

    name: str
    kind: str
    d_in: int
    d_out: int
    parts: tuple[Part, ...]

    @cached_property
    def trained(self) -> tuple[Part, ...]:
        """The parts that have coefficients, in the order of the columns of `factors`."""
        return tuple(part for part in self.parts if part.trained)

    @property
    def one_hot(self) -> bool:
        """An embedding: its keys have a single 1, and its weight a row, not a column, for each entry of the key."""
        return self.kind == "Embedding"

    @property
    def key_width(self) -> int:
        """Numbers that are stored for a key: of a one-hot key, where its 1 is."""
        return 1 if self.one_hot else self.d_in

    def shape(self, part: Part) -> tuple[int, ...]:
        """Of a parameter."""
        if part.columns is None:
            return (self.d_out,)
        width = part.columns[1] - part.columns[0]
        return (width, self.d_out) if self.one_hot else (self.d_out, width)


@dataclass(frozen=True)
class Storage:
    """What is kept of every slot."""

    dtype: str = "float16"
    values: bool = True
    merge: str | None = None  # a tag: slots that share its value are summed up to one, and only their keys are kept


@dataclass(frozen=True)
class Optimizer:
    """An optimiser by name, with the columns of its ledger lines (after `stepped`)."""

    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """What is known of a run before its first step."""

    run: str
    created: str
    software: str
    storage: Storage
    optimizers: tuple[Optimizer, ...]
    layers: tuple[Layer, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        content = self._content()
        return json.dumps({**content, "crc32": checksum(content)}, indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """Its checksum, as the first shard repeats it."""
        return f"{checksum(self._content()):08x}"

    def _content(self) -> dict[str, Any]:
        return {"format": "dualform", "version": VERSION, **asdict(self)}


def checksum(content: dict[str, Any]) -> int:
    """Of a JSON document, however it is laid out."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


@dataclass(frozen=True)
class ShardInfo:
    """What a shard says of itself: steps [first_step, last_step) of a run, and the state after them."""

    run: str
    index: int
    previous: str  # digest of the shard before it; of the first: the manifest's checksum
    first_step: int
    last_step: int
    tags: dict[str, str]  # name -> int | float | bool | string
    strings: dict[str, list[str]]  # of string tags: the text of each code
    ended: str | None  # None: recording went on after this shard

    def to_json(self, checksums: dict[str, int]) -> str:
        return json.dumps({"version": VERSION, **asdict(self), "crc32": checksums}, sort_keys=True)


def header_digest(tensors: dict[str, Any], info: str) -> str:
    """Covers the part of a shard that no tensor's checksum does: its table of contents and its info."""
    table = json.dumps(tensors, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(info.encode(), zlib.crc32(table.encode())):08x}"
