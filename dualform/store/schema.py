"""Define the on-disk format: what a manifest says, how the tensors of a shard are called, in which precisions.

    parameter = Parameter("fc.weight", (10, 784), optimizer=0)
    layer = Layer("fc", "Linear", 784, 10, KeyLayout(784), (Use(parameter, (0, 784)),))
    shard[slot_tensor("fc", "keys")]

Coefficients belong to parameters, slots to layers: a layer *uses* parameters, and a parameter may have several uses,
like a head that is tied to an embedding. docs/internals/format.md describes the same for people.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from dualform.store.checksum import crc32
from dualform.store.geometry import Geometry

VERSION = 7
MANIFEST = "manifest.json"
LOCK = "writer.lock"
MAX_RANKS = 10_000  # processes that record one run
MAX_THREADS = 4096  # that a recipe may want
RESERVED = ("slot", "step", "query", "rank", "score", "coefficient", "visits")  # columns of every table, never tags
MAX_HEADER_BYTES = 100_000_000  # of a shard, as safetensors has it; and of a manifest
EXPONENTS = range(-126, 128)  # of the powers of two that a float32 has


@dataclass(frozen=True)
class Precision:
    """A precision that keys and values are stored in."""

    code: str  # safetensors' name
    nbytes: int
    eps: float  # what rounding to it costs, relative to a number's size
    tolerance: float  # relative error that a certified parameter may have
    scaled: bool = False  # rows are divided by powers of two, and the exponents stored beside them


PRECISIONS = {
    "float16": Precision("F16", 2, 2.0**-11, 5e-4, scaled=True),
    "float32": Precision("F32", 4, 2.0**-24, 5e-5),
    "float64": Precision("F64", 8, 2.0**-53, 1e-9),
}


# Precision of a backward pass by its code: the gradient was computed and rounded in it, as autocast does. From `JOINED`
# on, codes are of further calls of the layer in the pass before, which were summed up with it before they were widened.
PASS_PRECISIONS = ("as the weight", "bfloat16", "float16", "bfloat16", "float16")
JOINED = 3

# safetensors' names of what a shard may hold, and numpy's; of bfloat16, which numpy does not know, torch's
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


# Names of files and tensors


def shard_name(index: int, rank: int = 0) -> str:
    """Return the name of a chapter's file; each process of a distributed training has a chain of its own."""
    own = f"rank-{rank:04d}-" if rank else ""
    return f"{own}shard-{index:06d}.safetensors"


def lock_name(rank: int) -> str:
    """Return the name of the lock that the writer of a chain holds."""
    return f"rank-{rank:04d}-{LOCK}" if rank else LOCK


STATE, SLOTS, AUDIT, GRADIENTS, BUFFERS = "state/", "slots/", "audit/", "gradients/", "buffers/"
REMAINDERS = "remainders/"
STATE_PARAMETERS, STATE_BUFFERS, STATE_OPTIMIZERS = "state/parameters/", "state/buffers/", "state/optimizers/"
STATE_CARRIED = "state/carried/"
TAGS, UNTAGGED = "tags/", "untagged/"
LOSSES, BATCHES = "witness/losses", "witness/batches"  # of each step of a recipe


def slot_tensor(layer: str, column: str) -> str:
    """Return the name of a column of a layer's slots: keys, key_index, key_exponent, values, factors, ..."""
    return f"{SLOTS}{layer}/{column}"


def tag_tensor(layer: str, tag: str, what: str = "tags") -> str:
    """Return the name of a tag's column; or, if `what` is "untagged", of that which says where it has no value."""
    return f"{what}/{layer}/{tag}"


def text_tensor(tag: str) -> str:
    """Return the name of the bytes of a string tag's texts, one after the other."""
    return f"texts/{tag}"


def text_ends_tensor(tag: str) -> str:
    """Return the name of the places where each of these texts ends."""
    return f"text_ends/{tag}"


def audit_tensor(layer: str) -> str:
    return f"{AUDIT}{layer}"


def ledger_tensor(parameter: str) -> str:
    return f"ledger/{parameter}"


def gradient_tensor(parameter: str) -> str:
    """Return the name of the gradients of a parameter that is accounted for, step by step."""
    return f"{GRADIENTS}{parameter}"


def remainder_tensor(parameter: str) -> str:
    """Return the name of what an optimiser's own rounding added to a parameter, in each step that it took."""
    return f"{REMAINDERS}{parameter}"


def buffer_tensor(buffer: str) -> str:
    """Return the name of the values of a small buffer after each step."""
    return f"{BUFFERS}{buffer}"


def state_tensor(parameter: str) -> str:
    return f"{STATE_PARAMETERS}{parameter}"


def optimizer_tensor(optimizer: int | None, parameter: str, entry: str | None) -> str:
    return f"{STATE_OPTIMIZERS}{optimizer}/{parameter}/{entry}"


# What a manifest says


@dataclass(frozen=True)
class Parameter:
    """A parameter that recorded layers use. Coefficients are its own, whoever uses it."""

    name: str
    shape: tuple[int, ...]
    optimizer: int | None  # None: it is constant

    @property
    def trained(self) -> bool:
        return self.optimizer is not None


@dataclass(frozen=True)
class OtherParameter:
    """A trainable parameter that no recorded layer uses, and the reason why."""

    parameter: Parameter
    reason: str


@dataclass(frozen=True)
class Use:
    """What a layer does with a parameter: which entries of the key it multiplies; None: a key of its own, always 1.

    Outputs may come in groups, each of which sees as many of these entries, and no others.
    """

    parameter: Parameter
    columns: tuple[int, int] | None
    groups: int = 1

    @property
    def trained(self) -> bool:
        return self.parameter.trained

    @property
    def width(self) -> int:
        """How many entries of its key each output sees."""
        return 1 if self.columns is None else (self.columns[1] - self.columns[0]) // self.groups

    @property
    def entries(self) -> slice:
        """Where these are in the layer's key."""
        return slice(0) if self.columns is None else slice(*self.columns)


@dataclass(frozen=True)
class KeyLayout:
    """How a key is stored: as so many numbers, or as whole numbers that point somewhere.

    Or, where there is a geometry, not by itself: maps of pixels are stored, of so many numbers each, and a key is a
    patch of one.
    """

    width: int
    index: bool = False
    geometry: Geometry | None = None


@dataclass(frozen=True)
class Layer:
    """A recorded map, what it is a kind of, and the parameters it uses; the first use is trained."""

    name: str
    kind: str
    d_in: int
    d_out: int
    keys: KeyLayout
    uses: tuple[Use, ...]
    stored: bool = True  # whether its keys and values are in the shards; else a recipe makes them again

    @cached_property
    def trained(self) -> tuple[Use, ...]:
        """The uses that have coefficients, in the order of the columns of `factors`."""
        return tuple(use for use in self.uses if use.trained)

    @cached_property
    def attended(self) -> tuple[Use, ...]:
        """Those of them that multiply the key: what attention is about."""
        return tuple(use for use in self.trained if use.columns is not None)


@dataclass(frozen=True)
class Storage:
    """What is kept of every slot."""

    dtype: str = "float16"
    values: bool = True
    merge: str | None = None  # a tag: slots that share its value are summed up to one, and only their keys are kept

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.dtype]

    def slot_nbytes(self, layer: Layer) -> int:
        """Return how many bytes a slot of a layer takes, before repeated keys and zeros are left out."""
        number, exponent = self.precision.nbytes, 2 * self.precision.scaled
        key = 4 * layer.keys.width if layer.keys.index else number * layer.keys.width + exponent
        return key + (number * layer.d_out + exponent if self.values else 0)


@dataclass(frozen=True)
class Optimizer:
    """An optimiser by name, with the columns of its ledger lines (after `stepped`)."""

    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Repetition:
    """What it takes, besides its recipe, to run a training again: the same seed, and the same number of threads."""

    seed: int
    threads: int
    optimizers: int = 1  # whose steps, one after the other, are one step of the recipe


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
    others: tuple[OtherParameter, ...] = ()
    frozen_numbers: int = 0  # in parameters that were not trainable when recording began
    world: int = 1  # how many processes recorded it, each to a chain of shards of its own
    recipe: Repetition | None = None  # None: it was trained by a loop of the user's own

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All that are used, each once."""
        return tuple(dict.fromkeys(use.parameter for layer in self.layers for use in layer.uses))

    @cached_property
    def users(self) -> dict[Parameter, list[Layer]]:
        """The layers that use each parameter."""
        users: dict[Parameter, list[Layer]] = {}
        for layer in self.layers:
            for parameter in dict.fromkeys(use.parameter for use in layer.uses):
                users.setdefault(parameter, []).append(layer)
        return users

    def to_json(self) -> str:
        content = self._content()
        return json.dumps({**content, "crc32": checksum(content)}, indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """Its checksum, as the first shard repeats it."""
        return f"{checksum(self._content()):08x}"

    def _content(self) -> dict[str, Any]:
        layers = [
            {**asdict(layer), "uses": [{**asdict(use), "parameter": use.parameter.name} for use in layer.uses]}
            for layer in self.layers
        ]
        described = {
            "parameters": [asdict(parameter) for parameter in self.parameters],
            "others": [{**asdict(other.parameter), "reason": other.reason} for other in self.others],
            "layers": layers,
        }
        return {"format": "dualform", "version": VERSION, **asdict(self), **described}


def checksum(content: dict[str, Any]) -> int:
    """Return the CRC-32 of a JSON document, however it is laid out."""
    return crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


@dataclass(frozen=True)
class ShardInfo:
    """What a shard says of itself: steps [first_step, last_step) of a run, and the state after them."""

    run: str
    index: int
    previous: str  # digest of the shard before it; of the first: the manifest's checksum
    first_step: int
    last_step: int
    tags: dict[str, str]  # name -> int | float | bool | string
    ended: str | None  # None: recording went on after this shard
    dropped: dict[str, int] = field(default_factory=dict)  # layer -> the step from which it is not recorded any more
    notes: tuple[str, ...] = ()  # what a reader should know of it
    rank: int = 0  # of the process that wrote it; those but 0 write slots only
    same: dict[str, str] = field(default_factory=dict)  # column of a tag -> that of another layer, which it is equal to

    def to_json(self, checksums: dict[str, int]) -> str:
        return json.dumps({"version": VERSION, **asdict(self), "crc32": checksums}, sort_keys=True)


def header_digest(tensors: dict[str, Any], info: str) -> str:
    """Return the checksum of what no tensor's checksum covers: a shard's table of contents and its info."""
    table = json.dumps(tensors, sort_keys=True, separators=(",", ":"))
    return f"{crc32(info.encode(), crc32(table.encode())):08x}"
