"""The words of the on-disk format: what a manifest says, what the tensors of a shard are called.

docs/format.md tells the same story for people. Nothing here touches a file.
"""

import json
import zlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from dualform.errors import RunError

VERSION = 1
MANIFEST = "manifest.json"
LOCK = "writer.lock"
_WRAPPERS = ("_orig_mod.", "module.")
DTYPES = ("float16", "float32", "float64")


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
        content = {"format": "dualform", "version": VERSION, **asdict(self)}
        return json.dumps({**content, "crc32": _crc(content)}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """Read a manifest; anything that is not one raises a RunError that names `where`."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{where} is not valid JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != "dualform":
            raise RunError(f"{where} is not the manifest of a dualform run")
        if content.get("version") != VERSION:
            raise RunError(
                f"{where} has format version {content.get('version')!r}, this dualform reads {VERSION}: "
                "upgrade with pip install --upgrade dualform"
            )
        if content.pop("crc32", None) != _crc(content):
            raise RunError(f"{where} was damaged or edited: its checksum does not fit")
        try:
            return cls(
                run=content["run"],
                created=content["created"],
                software=content["software"],
                storage=Storage(**content["storage"]),
                optimizers=tuple(Optimizer(o["kind"], tuple(o["columns"])) for o in content["optimizers"]),
                layers=tuple(_layer(layer) for layer in content["layers"]),
                about=content["about"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{where} is incomplete: {error!r}") from None


def _layer(content: dict[str, Any]) -> Layer:
    parts = tuple(
        Part(
            p["parameter"],
            None if p["columns"] is None else (p["columns"][0], p["columns"][1]),
            p["optimizer"],
        )
        for p in content["parts"]
    )
    return Layer(content["name"], content["kind"], content["d_in"], content["d_out"], parts)


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


@dataclass(frozen=True)
class ShardInfo:
    """What a shard says of itself: steps [first_step, last_step) of a run, and the state after them."""

    run: str
    index: int
    first_step: int
    last_step: int
    tags: dict[str, str]  # name -> int | float | bool | string
    strings: dict[str, list[str]]  # of string tags: the text of each code
    ended: str | None  # None: recording went on after this shard

    def to_json(self, checksums: dict[str, int]) -> str:
        return json.dumps({"version": VERSION, **asdict(self), "crc32": checksums}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> tuple["ShardInfo", dict[str, int]]:
        """The info and the checksum of each tensor. Raises KeyError, TypeError or ValueError."""
        content = json.loads(text)
        if content.pop("version") != VERSION:
            raise ValueError("of another format version")
        checksums = content.pop("crc32")
        return cls(**content), checksums


def header_digest(tensors: dict[str, Any], info: str) -> str:
    """Covers the part of a shard that no tensor's checksum does: its table of contents and its info."""
    table = json.dumps(tensors, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(info.encode(), zlib.crc32(table.encode())):08x}"
