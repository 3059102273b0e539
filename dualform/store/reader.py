"""Opens a run: the manifest and the longest valid prefix of its shards, as memory maps.

Opening reads headers and sizes only; the bytes of a tensor are checked when it is first asked for, so that a
damaged one is never taken for an answer. Slots are mostly read from the first shard to the last, so while those of
one are used, those of the next are checked. No torch here, so that asking a run what it is costs nothing.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import RunError
from dualform.store.ahead import WORTH, Checksum
from dualform.store.backend import Backend, LocalFiles, Where, open_backend
from dualform.store.codec.sparse import stored_counts, with_zeros
from dualform.store.document import printable
from dualform.store.format import EXPONENTS, MANIFEST, Layer, Manifest, header_digest, shard_name
from dualform.store.parse import info_from_json, manifest_from_json
from dualform.store.shard_file import read_header
from dualform.store.sound import check_contents

Array = NDArray[Any]

_LONGEST = 100_000_000  # bytes of a manifest; safetensors allows as many for the header of a shard
_MOST_VISITS = 1 << 53
_WIDEST = 64  # signs of a text
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "BF16": np.uint16,
}  # fmt: skip


class Shard:
    """One sealed chapter. `shard["ledger/0.weight"]` is a memory map of that tensor, checked when first asked for."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.path = backend.describe(name)  # for messages
        self.following: Shard | None = None  # in its run
        self._checked: set[str] = set()
        self._begun: dict[str, Checksum] = {}  # of tensors that may be asked for soon
        self._within: set[tuple[str, int]] = set()
        self._starts: dict[str, NDArray[np.int64]] = {}  # of values that are stored without their zeros
        try:
            self._blob = backend.open(name)
            self._tensors, metadata, self._start = read_header(self._blob)
            self.digest = header_digest(self._tensors, metadata["dualform"])
            if metadata["digest"] != self.digest:
                raise ValueError("the checksum of its header does not fit")
            self.info, self._checksums = info_from_json(metadata["dualform"], self.path)
        except FileNotFoundError:
            raise
        except (OSError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
            raise RunError(f"{self.path} is not a sound shard: {printable(str(error))}") from None

    def check_contents(self, manifest: Manifest) -> None:
        """Raise unless every tensor is there that a run of this manifest has, in its dtype and shape."""
        try:
            check_contents(manifest, self.info, self._tensors)
        except ValueError as error:
            raise RunError(f"{self.path} is not a sound shard: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        if name not in self._tensors:
            raise RunError(f"{self.path} has no {name}")
        entry, content = self._tensors[name], self._content(name)
        if name not in self._checked:
            self._check(name)
        try:
            array: Array = content.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except (KeyError, ValueError, OverflowError) as error:  # unknown dtypes, empty tensors of absurd shapes
            raise RunError(f"{self.path} is not a sound shard: {name} cannot be read: {error}") from None
        return array if array.flags.aligned else array.copy()

    def _content(self, name: str) -> Array:
        begin, end = (self._start + offset for offset in self._tensors[name]["data_offsets"])
        return self._blob.read(begin, end)

    def _check(self, name: str) -> None:
        """Raise unless a tensor's bytes are those that were written; then let the next shard begin with its own."""
        checksum = self._begun.pop(name, None) or Checksum(self._content(name).data)
        if checksum.result() != self._checksums.get(name):
            raise RunError(
                f"{self.path} is damaged: the checksum of {name} does not fit. Restore the file from a copy, or "
                "remove it and those after it: what comes before is a run"
            )
        self._checked.add(name)
        if self.following is not None and name.startswith("slots/"):  # of a state, mostly one alone is asked for
            self.following.expect(name)

    def expect(self, name: str) -> None:
        """Begin to check a tensor, if it is there and large: what is found is told to who asks for it."""
        if name in self and name not in self._checked and name not in self._begun:
            content = self._content(name)
            if content.nbytes >= WORTH:
                self._begun[name] = Checksum(content.data)
                self._begun[name].begin()

    def dtype(self, name: str) -> str:
        """safetensors' name of the dtype: numpy has none for bfloat16, whose bits come as uint16."""
        return str(self._tensors[name]["dtype"])

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._tensors if name.startswith(prefix)]

    @property
    def nbytes(self) -> int:
        return self._blob.size

    @property
    def has_state(self) -> bool:
        return any(name.startswith("state/") for name in self._tensors)

    @property
    def state_nbytes(self) -> int:
        spans = (self._tensors[name]["data_offsets"] for name in self.names("state/"))
        return sum(end - begin for begin, end in spans)

    def slots(self, layer: str) -> int:
        """How many slots of a layer there are."""
        return self._rows(f"slots/{layer}/key_index") if f"slots/{layer}/key_index" in self else self.key_rows(layer)

    def key_rows(self, layer: str) -> int:
        """How many keys of a layer are stored here."""
        return self._rows(f"slots/{layer}/keys")

    def _rows(self, name: str) -> int:
        return int(self._tensors[name]["shape"][0]) if name in self else 0

    def passes(self, layer: str) -> tuple[Array, Array]:
        """Of each backward pass through a layer its step, and how many slots it has."""
        steps, rows = self[f"slots/{layer}/pass_step"], self[f"slots/{layer}/pass_rows"]
        slots = self.slots(layer)
        self._check_within(steps, self.info.first_step, self.info.last_step, f"slots/{layer}/pass_step")
        self._check_within(rows, 1, slots + 1, f"slots/{layer}/pass_rows")
        if rows.sum() != slots or (np.diff(steps) < 0).any():
            raise RunError(f"{self.path} is not a sound shard: the passes of {layer} do not add up to its slots")
        return steps, rows

    def check_indices(self, layer: Layer, stored: int) -> None:
        """Check what points elsewhere: the keys of slots, of which `stored` are there, and the ones of one-hot keys."""
        if f"slots/{layer.name}/key_index" in self:
            self._check_within(self[f"slots/{layer.name}/key_index"], 0, stored, f"slots/{layer.name}/key_index")
        if layer.one_hot:
            self._check_within(self[f"slots/{layer.name}/keys"], 0, layer.d_in, f"slots/{layer.name}/keys")

    def values(self, layer: Layer, rows: slice | Array) -> Array:
        """Some rows of a layer's values, with their zeros if those were left out: (rows, d_out)."""
        entries, name = self[f"slots/{layer.name}/values"], f"slots/{layer.name}/value_mask"
        if name not in self:
            return entries[rows]
        starts, bits = self._value_starts(layer), self[name][rows]
        if isinstance(rows, slice):
            return with_zeros(bits, entries[starts[rows.start] : starts[rows.stop]], layer.d_out)
        counts = starts[rows + 1] - starts[rows]
        # where each row's entries begin, less where they go: the rest is counting on
        shift = np.repeat(starts[rows] - np.cumsum(counts) + counts, counts)
        return with_zeros(bits, entries[shift + np.arange(len(shift))], layer.d_out)

    def _value_starts(self, layer: Layer) -> NDArray[np.int64]:
        """Where the stored entries of each row of values begin, and where the last ones end: (slots + 1,)."""
        name = f"slots/{layer.name}/value_mask"
        if name not in self._starts:
            try:
                ends = np.cumsum(stored_counts(self[name], layer.d_out))
            except ValueError as error:
                raise RunError(f"{self.path} is not a sound shard: {name}: {error}") from None
            if ends[-1] != len(self[f"slots/{layer.name}/values"]):
                raise RunError(f"{self.path} is not a sound shard: {name} does not add up to the values")
            self._starts[name] = np.concatenate([[0], ends])
        return self._starts[name]

    def exponents(self, layer: str, of: str) -> Array | None:
        """The power of two that each row of `key` or `value` was divided by; None: they are as they were."""
        name = f"slots/{layer}/{of}_exponent"
        if name not in self:
            return None
        self._check_within(self[name], EXPONENTS.start, EXPONENTS.stop, name)
        return self[name]

    def visits(self, layer: str) -> Array | None:
        """How many slots each of a merged memory is the sum of."""
        name = f"slots/{layer}/visits"
        if name not in self:
            return None
        self._check_within(self[name], 1, _MOST_VISITS, name)
        return self[name]

    def tag(self, layer: str, tag: str) -> Array:
        """A tag's column, strings as their codes: `strings` has the texts."""
        name = f"tags/{layer}/{tag}"
        column = self[name]
        if self.info.tags[tag] == "string":
            self._check_within(column, 0, len(self.info.strings[f"{layer}/{tag}"]), name)
        if self.info.tags[tag] == "bool":
            self._check_within(column.view(np.uint8), 0, 2, name)
        return column

    def strings(self, layer: str, tag: str) -> Array:
        """The text of each code; long ones as objects, for in an array of numpy's all are as wide as the longest."""
        texts = self.info.strings[f"{layer}/{tag}"]
        return np.array(texts, dtype=object if any(len(text) > _WIDEST for text in texts) else np.str_)

    def check(self) -> None:
        """Read every byte against its checksum."""
        for name in self._tensors:
            self[name]

    def _check_within(self, column: Array, low: int, end: int, name: str) -> None:
        if (name, end) in self._within or not len(column):
            return
        if not (low <= int(column.min()) and int(column.max()) < end):
            raise RunError(f"{self.path} is not a sound shard: {name} is not between {low} and {end - 1}")
        self._within.add((name, end))


class Run:
    """A run, opened: `Run("runs/mnist")`, or of any backend.

    `unread` says why shards after the valid prefix were left out, if any.
    """

    def __init__(self, where: Where) -> None:
        self.backend = open_backend(where)
        self.manifest = read_manifest(self.backend)
        self.shards: list[Shard] = []
        self.unread: str | None = None
        self.tags: dict[str, str] = {}  # name -> kind, of every slot there is
        for index in range(self._files()):
            try:
                shard = Shard(self.backend, shard_name(index))
                self._check_follows(shard, index)
            except FileNotFoundError:
                if self._files() > index:  # or else the run was cut back just now
                    self.unread = f"{self.backend.describe(shard_name(index))} is missing"
                break
            except RunError as error:
                self.unread = str(error)
                break
            if self.shards:
                self.shards[-1].following = shard
            self.shards.append(shard)
            if self._has_slots(shard):
                self.tags = shard.info.tags
        if not self.shards:
            reason = self.unread or "nothing was sealed yet"
            raise RunError(f"{self.backend.describe()} has no readable shard: {reason}")

    def _files(self) -> int:
        try:
            names = self.backend.names()
        except OSError as error:
            raise RunError(f"cannot list {self.backend.describe()}: {error.strerror or error}") from None
        return sum(name.startswith("shard-") and name.endswith(".safetensors") for name in names)

    @property
    def path(self) -> Path:
        """The directory of a run of local files, where other files may be beside it; raises for any other run."""
        if not isinstance(self.backend, LocalFiles):
            raise RunError(f"the run in {self.backend.describe()} has no directory: it is not made of local files")
        return self.backend.directory

    def _check_follows(self, shard: Shard, index: int) -> None:
        info, before = shard.info, self.shards[-1] if self.shards else None
        if (info.run, info.index) != (self.manifest.run, index):
            raise RunError(f"{shard.path} belongs to another run or another place in it")
        if info.previous != (before.digest if before else self.manifest.digest):
            raise RunError(f"{shard.path} does not follow the {'shard' if before else 'manifest'} before it")
        if info.first_step != (before.info.last_step if before else 0) or (not before and info.last_step):
            raise RunError(f"{shard.path} does not go on where the shard before it ends")
        if not before and not shard.has_state:
            raise RunError(f"{shard.path} does not have the state the run began with")
        shard.check_contents(self.manifest)
        if self._has_slots(shard) and any(map(self._has_slots, self.shards)) and info.tags != self.tags:
            raise RunError(f"{shard.path} has other tags than the shards before it")

    def _has_slots(self, shard: Shard) -> bool:
        return any(shard.slots(layer.name) for layer in self.manifest.layers)

    @property
    def steps(self) -> int:
        return self.shards[-1].info.last_step

    @property
    def ended(self) -> str | None:
        """How recording ended; None: it was cut off, or is still going on."""
        return self.shards[-1].info.ended

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    @cached_property
    def layers(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.manifest.layers}

    @property
    def sealed(self) -> dict[int, Shard]:
        """The shard that ends at each step, with the state after it; the first, if only sealing was done since."""
        ending = {shard.info.last_step: shard for shard in reversed(self.shards) if shard.has_state}
        return {step: ending[step] for step in sorted(ending)}

    def slots(self, layer: str) -> int:
        return sum(shard.slots(layer) for shard in self.shards)

    def chapters(self) -> Iterator[tuple[Shard, Shard]]:
        """Each shard with steps, after the shard before it."""
        for before, shard in zip(self.shards, self.shards[1:], strict=False):
            if shard.info.last_step > shard.info.first_step:
                yield before, shard

    def ledger(self, parameter: str) -> NDArray[np.float64]:
        """All ledger lines of a parameter: (steps, 1 + columns)."""
        lines = [shard[f"ledger/{parameter}"] for _, shard in self.chapters()]
        return np.concatenate(lines) if lines else np.empty((0, 0))

    def snapshot(self, step: int) -> Shard:
        """The latest shard whose state is from `step` or before."""
        return next(s for s in reversed(self.shards) if s.has_state and s.info.last_step <= step)


def read_manifest(backend: Backend) -> Manifest:
    """What a run says it is; raises if it is none."""
    if not backend.exists():
        raise RunError(f"there is no run at {backend.describe()}: no such directory")
    try:
        blob = backend.open(MANIFEST)
        if blob.size > _LONGEST:
            raise ValueError(f"it is longer than {_LONGEST:,} bytes")
        return manifest_from_json(blob.read(0, blob.size).tobytes().decode(), backend.describe(MANIFEST))
    except FileNotFoundError:
        raise RunError(f"{backend.describe()} is not a dualform run: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {backend.describe(MANIFEST)}: {error}") from None
