"""One sealed chapter of a run: its tensors by name, checked against their checksums when first asked for.

Opening reads the header only, so that a damaged tensor is never taken for an answer and an unread one costs nothing.
Slots are mostly read from the first shard to the last, so while those of one are used, those of the next are checked.
"""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import NotRecorded, RunError
from dualform.store.backend import Backend
from dualform.store.checksum import crc32
from dualform.store.codec.sparse import stored_counts, with_zeros
from dualform.store.codec.texts import decoded
from dualform.store.parse import info_from_json
from dualform.store.prefetch import MIN_BYTES, Checksum
from dualform.store.schema import (
    BATCHES,
    EXPONENTS,
    JOINED,
    LOSSES,
    PASS_PRECISIONS,
    SLOTS,
    STATE,
    STATE_BUFFERS,
    STATE_PARAMETERS,
    Layer,
    Manifest,
    ShardInfo,
    header_digest,
    slot_tensor,
    tag_tensor,
    text_ends_tensor,
    text_tensor,
)
from dualform.store.shard_file import NUMPY, read_header
from dualform.store.validate import check_contents
from dualform.strict_json import printable

Array = NDArray[Any]

_MAX_VISITS = 1 << 53
REPEATABLE = (
    "this run holds snapshots, and no slots: they are made again by the recipe it was trained with, "
    "dualform.load(path, recipe=recipe)"
)
_INHERITED = (STATE_PARAMETERS, STATE_BUFFERS)  # a snapshot does not hold again what has not changed
_MAX_ARRAY_CHARACTERS = 64  # of a text in an array of fixed width


class Shard:
    """One sealed chapter. `shard["ledger/0.weight"]` is a memory map of that tensor, checked when first asked for.

    Opening raises a RunError for damage. An OSError or a MemoryError says nothing of the file: it may open later.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        path = backend.describe(name)
        try:
            self._blob = backend.open(name)
            tensors, metadata, start = read_header(self._blob)
            self.digest = header_digest(tensors, metadata["dualform"])
            if metadata["digest"] != self.digest:
                raise ValueError("the checksum of its header does not fit")
            info, self._checksums = info_from_json(metadata["dualform"], path)
            self._take_from(path, info)
            self._tensors |= tensors
            self._check_same()
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is a corrupt shard: {printable(str(error))}") from None
        self._tensors |= {name: self._tensors[other] for name, other in self.info.same.items()}
        self.has_state = any(name.startswith(STATE) for name in self._tensors)
        offsets = {name: entry["data_offsets"] for name, entry in self._tensors.items()}
        self._spans = {name: (start + first, start + end) for name, (first, end) in offsets.items()}

    def _take_from(self, path: str, info: ShardInfo) -> None:
        """Begin with nothing read."""
        self.path, self.info = path, info  # path for messages
        self.before: Shard | None = None  # in its run
        self.following: Shard | None = None
        self.has_state = False
        self._tensors: dict[str, Any] = {}
        self._arrays: dict[str, Array] = {}  # that were asked for, and checked
        self._begun: dict[str, Checksum] = {}  # of tensors that may be asked for soon
        self._within: set[tuple[str, int]] = set()
        self._strings: dict[str, Array] = {}  # texts of tags, decoded
        self._maps: dict[str, tuple[Array, Array]] = {}  # by layer
        self._starts: dict[str, NDArray[np.int64]] = {}  # of values that are stored without their zeros

    def _check_same(self) -> None:
        """Raise unless columns that are another layer's, too, are those of tags, and each stands for one that is."""
        for name, other in self.info.same.items():
            prefixes = {tensor.partition("/")[0] for tensor in (name, other) if isinstance(tensor, str)}
            if prefixes not in ({"tags"}, {"untagged"}) or name in self._tensors or other not in self._tensors:
                raise ValueError(f"{name!r} cannot be the same as {other!r}")

    def check_contents(self, manifest: Manifest) -> None:
        """Raise unless it has every tensor that a run of this manifest has, in its dtype and shape."""
        try:
            check_contents(manifest, self.info, self._tensors)
        except ValueError as error:
            raise RunError(f"{self.path} is a corrupt shard: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            other = self.info.same.get(name)
            self._arrays[name] = self._read(name) if other is None else self[other]
        return self._arrays[name]

    def snapshot_holder(self, name: str) -> "Shard":
        """Return the shard that has a tensor of this one's snapshot, which may be an earlier one."""
        shard = self
        while name not in shard and shard.before is not None and name.startswith(_INHERITED):
            shard = shard.before
        return shard

    def snapshot_names(self, prefix: str) -> list[str]:
        """Return the names of a snapshot's tensors, those that earlier shards hold for it too."""
        names, shard = dict.fromkeys(self.names(prefix)), self.before
        while shard is not None:
            names |= dict.fromkeys(name for name in shard.names(prefix) if name.startswith(_INHERITED))
            shard = shard.before
        return list(names)

    def _read(self, name: str) -> Array:
        """Raise unless a tensor's bytes are those that were written; then let the next shard begin with its own."""
        if name not in self._tensors:
            if name.startswith(SLOTS):
                raise NotRecorded(REPEATABLE)
            raise RunError(f"{self.path} has no {name}")
        entry, content, begun = self._tensors[name], self._blob.read(*self._spans[name]), self._begun.pop(name, None)
        if (crc32(content.data) if begun is None else begun.result()) != self._checksums.get(name):
            raise RunError(
                f"{self.path} is damaged: the checksum of {name} does not fit. Restore the file from a copy, or "
                "remove it and those after it: what comes before is a run"
            )
        if self.following is not None and name.startswith(SLOTS):  # of a state, mostly one alone is asked for
            self.following.expect(name)
        try:
            array: Array = content.view(NUMPY[entry["dtype"]]).reshape(entry["shape"])
        except (KeyError, ValueError, OverflowError) as error:  # unknown dtypes, empty tensors of absurd shapes
            raise RunError(f"{self.path} is a corrupt shard: {name} cannot be read: {error}") from None
        return array if array.flags.aligned else array.copy()

    def expect(self, name: str) -> None:
        """Begin to check a large tensor; whoever asks for it later gets it checked, or the error."""
        if name in self and name not in self._arrays and name not in self._begun:
            content = self._blob.read(*self._spans[name])
            if content.nbytes >= MIN_BYTES:
                self._begun[name] = Checksum(content.data)
                self._begun[name].begin()

    def dtype(self, name: str) -> str:
        """Return safetensors' name of the dtype: numpy has none for bfloat16, whose bits come as uint16."""
        return str(self._tensors[name]["dtype"])

    def length(self, name: str) -> int:
        """Return how many rows a tensor has."""
        return int(self._tensors[name]["shape"][0])

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._tensors if name.startswith(prefix)]

    @property
    def nbytes(self) -> int:
        return self._blob.size

    @property
    def state_nbytes(self) -> int:
        spans = (self._tensors[name]["data_offsets"] for name in self.names(STATE))
        return sum(end - begin for begin, end in spans)

    def slots(self, layer: str) -> int:
        """Return how many slots of a layer it has."""
        index = slot_tensor(layer, "key_index")
        if slot_tensor(layer, "keys") not in self:
            tags = [tag_tensor(layer, tag) for tag in self.info.tags]  # each has a row for each slot
            return self.length(tags[0]) if slot_tensor(layer, "pass_rows") in self else 0
        if slot_tensor(layer, "extents") not in self:
            return self.length(index) if index in self else self.key_rows(layer)
        columns = [slot_tensor(layer, name) for name in ("value_mask", "values")]  # with a row for each slot
        columns += [tag_tensor(layer, tag) for tag in self.info.tags]
        present = [column for column in columns if column in self]
        return self.length(present[0]) if present else int(self[slot_tensor(layer, "pass_rows")].sum())

    def key_rows(self, layer: str) -> int:
        """Return how many keys of a layer are stored in it."""
        keys = slot_tensor(layer, "keys")
        return self.length(keys) if keys in self else 0

    def passes(self, layer: str) -> tuple[Array, Array]:
        """Return the step of each backward pass through a layer, and how many slots it has."""
        of_steps, of_rows = slot_tensor(layer, "pass_step"), slot_tensor(layer, "pass_rows")
        steps, rows, slots = self[of_steps], self[of_rows], self.slots(layer)
        self._check_within(steps, self.info.first_step, self.info.last_step, of_steps)
        self._check_within(rows, 1, slots + 1, of_rows)
        if rows.sum() != slots or (np.diff(steps) < 0).any():
            raise RunError(f"{self.path} is a corrupt shard: the passes of {layer} do not add up to its slots")
        if any(self.length(tag_tensor(layer, tag)) != slots for tag in self.info.tags):
            raise RunError(f"{self.path} is a corrupt shard: the tags of {layer} are not as many as its slots")
        return steps, rows

    def pass_precision(self, layer: str) -> Array | None:
        """Return the code of the precision that each backward pass was rounded to; None: to none."""
        name = slot_tensor(layer, "pass_precision")
        if name not in self:
            return None
        if (name, len(PASS_PRECISIONS)) not in self._within:
            self._check_within(self[name], 0, len(PASS_PRECISIONS), name)
            self._check_joined(layer, self[name])
        return self[name]

    def _check_joined(self, layer: str, codes: Array) -> None:
        """Raise unless all calls of a backward pass are of one step, have one precision and the same factors."""
        later = np.flatnonzero(codes >= JOINED)
        steps, factors = self.passes(layer)[0], self[slot_tensor(layer, "factors")]
        alike = (steps[later] == steps[later - 1]) & (factors[later] == factors[later - 1]).all(axis=1)
        alike &= np.isin(codes[later] - codes[later - 1], (0, JOINED - 1)) & (later > 0)
        if not alike.all():
            raise RunError(f"{self.path} is a corrupt shard: calls of {layer} are in one pass, but do not fit together")

    def maps(self, layer: Layer) -> tuple[Array, Array]:
        """Return the extents of the maps of each backward pass through a layer, and how many pixels they have.

        Raises unless pixels and slots are as many as maps of these extents have.
        """
        geometry, name = layer.keys.geometry, slot_tensor(layer.name, "extents")
        assert geometry is not None
        if layer.name in self._maps:
            return self._maps[layer.name]
        if slot_tensor(layer.name, "keys") not in self:
            raise NotRecorded(REPEATABLE)
        extents, (_, slots), stored = self[name], self.passes(layer.name), self.key_rows(layer.name)
        self._check_within(extents, 1, stored + 1, name)
        pixels = np.zeros(len(slots), dtype=np.int64)
        for sizes in {tuple(row) for row in extents.tolist()}:
            positions, chosen = geometry.positions(sizes), (extents == sizes).all(axis=1)
            whole = prod(sizes) <= stored and min(positions) > 0
            if not whole or (slots[chosen] % prod(positions)).any():
                raise RunError(f"{self.path} is a corrupt shard: {name} does not fit the slots")
            pixels[chosen] = slots[chosen] // prod(positions) * prod(sizes)
        if pixels.sum() != stored:
            raise RunError(f"{self.path} is a corrupt shard: the maps of {layer.name} do not add up to its slots")
        self._maps[layer.name] = extents, pixels
        return extents, pixels

    def key_index(self, layer: Layer, stored: int) -> Array | None:
        """Return the number of each slot's key among the `stored` ones of all shards so far; None: they are in order.

        Raises if these, or keys that are indices themselves, point to nothing.
        """
        index, keys = slot_tensor(layer.name, "key_index"), slot_tensor(layer.name, "keys")
        if layer.keys.index:
            self._check_within(self[keys], 0, layer.d_in, keys)
        if index not in self._tensors:
            return None
        self._check_within(self[index], 0, stored, index)
        return self[index]

    def values(self, layer: Layer, rows: slice | Array) -> Array:
        """Return some rows of a layer's values, with their zeros if those were left out: (rows, d_out)."""
        entries, name = self[slot_tensor(layer.name, "values")], slot_tensor(layer.name, "value_mask")
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
        """Return where the stored entries of each row of values begin, and where the last ones end: (slots + 1,)."""
        name = slot_tensor(layer.name, "value_mask")
        if name not in self._starts:
            try:
                ends = np.cumsum(stored_counts(self[name], layer.d_out))
            except ValueError as error:
                raise RunError(f"{self.path} is a corrupt shard: {name}: {error}") from None
            if ends[-1] != len(self[slot_tensor(layer.name, "values")]):
                raise RunError(f"{self.path} is a corrupt shard: {name} does not add up to the values")
            self._starts[name] = np.concatenate([[0], ends])
        return self._starts[name]

    def exponents(self, layer: str, of: str) -> Array | None:
        """Return the exponent of the power of two that each row of `key` or `value` was divided by; None: of none."""
        name = slot_tensor(layer, f"{of}_exponent")
        if name not in self:
            return None
        self._check_within(self[name], EXPONENTS.start, EXPONENTS.stop, name)
        return self[name]

    def visits(self, layer: str) -> Array | None:
        """Return how many visits each slot of a merged memory is the sum of."""
        name = slot_tensor(layer, "visits")
        if name not in self:
            return None
        self._check_within(self[name], 1, _MAX_VISITS, name)
        return self[name]

    def tag(self, layer: str, tag: str) -> tuple[Array, NDArray[np.bool_] | None]:
        """Return a tag's column, and where it says nothing, since slots have no value of the tag; None: nowhere.

        Strings are there as their codes: `strings` has the texts.
        """
        name, untagged = tag_tensor(layer, tag), None
        column = self[name]
        if (missing := tag_tensor(layer, tag, "untagged")) in self:
            untagged = self[missing]
            self._check_within(untagged.view(np.uint8), 0, 2, missing)
        if self.info.tags[tag] == "string":
            self._check_within(column, 0, self.length(text_ends_tensor(tag)), name, untagged)
        if self.info.tags[tag] == "bool":
            self._check_within(column.view(np.uint8), 0, 2, name)
        return column, untagged

    def decoded(self, layer: str, tag: str, rows: slice | Array = slice(None)) -> Array:
        """Return some rows of a tag's column, strings as strings; as objects, if one of them has no value: None."""
        column, untagged = self.tag(layer, tag)
        missing = None if untagged is None or not untagged[rows].any() else untagged[rows]
        present = column[rows] if missing is None else column[rows][~missing]
        if self.info.tags[tag] == "string":
            present = self.strings(tag)[present]
        if missing is None:
            return present
        values = np.full(len(missing), None, dtype=object)
        values[~missing] = present
        return values

    def strings(self, tag: str) -> Array:
        """Return the text of each code; long ones as objects, since in a numpy array all are as wide as the longest."""
        if tag not in self._strings:
            content, ends = self[text_tensor(tag)], self[text_ends_tensor(tag)]
            try:
                texts = decoded(content, ends.tolist())
            except ValueError as error:
                raise RunError(f"{self.path} is a corrupt shard: the texts of tag {tag!r}: {error}") from None
            # an array of fixed width takes a NUL at the end of a text for padding
            kept = all(len(text) <= _MAX_ARRAY_CHARACTERS and not text.endswith("\0") for text in texts)
            self._strings[tag] = np.array(texts, dtype=np.str_ if kept else object)
        return self._strings[tag]

    def loss(self, step: int) -> float:
        """Return the loss of one of its steps, as it was in training."""
        return float(self[LOSSES][step - self.info.first_step])

    def batch(self, step: int) -> int:
        """Return the number that stands for the ids of the batch of one of its steps."""
        return int(self[BATCHES][step - self.info.first_step])

    def check(self) -> None:
        """Read every byte against its checksum."""
        for name in self._tensors:
            self[name]

    def _check_within(self, column: Array, low: int, end: int, name: str, but: Array | None = None) -> None:
        """Raise unless all numbers are in a range, but for those at some places."""
        if (name, end) in self._within:
            return
        column = column if but is None else column[~but]
        if not len(column):
            return
        if not (low <= int(column.min()) and int(column.max()) < end):
            raise RunError(f"{self.path} is a corrupt shard: {name} is not between {low} and {end - 1}")
        self._within.add((name, end))
