"""Opens a run: the manifest and the longest valid prefix of its shards, as memory maps.

Opening reads headers and sizes only; `Shard.check` reads every byte. No torch here, so that asking a
run what it is costs nothing.
"""

import json
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from dualform.errors import RunError
from dualform.store.format import MANIFEST, Layer, Manifest, ShardInfo, header_digest, shard_name

Array = NDArray[Any]

_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "BF16": np.uint16,
}  # fmt: skip


class Shard:
    """One sealed chapter. `shard["ledger/0.weight"]` is a memory map of that tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="np"):  # the library checks lengths, shapes and offsets
                pass
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                self._tensors: dict[str, Any] = json.loads(file.read(length))
            metadata = self._tensors.pop("__metadata__")
            self.info, self._checksums = ShardInfo.from_json(metadata["dualform"])
            sound = metadata["digest"] == header_digest(self._tensors, metadata["dualform"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is not a sound shard: {error}") from None
        if not sound:
            raise RunError(f"{path} is not a sound shard: the checksum of its header does not fit")
        self._start = 8 + length
        self._bytes = np.memmap(path, dtype=np.uint8, mode="c")  # "c": private pages, never written back

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        entry = self._tensors[name]
        begin, end = (self._start + offset for offset in entry["data_offsets"])
        flat: Array = self._bytes[begin:end].view(np.ndarray).view(_DTYPES[entry["dtype"]])
        return flat.reshape(entry["shape"])

    def dtype(self, name: str) -> str:
        """safetensors' name of the dtype: numpy has none for bfloat16, whose bits come as uint16."""
        return str(self._tensors[name]["dtype"])

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._tensors if name.startswith(prefix)]

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    @property
    def has_state(self) -> bool:
        return any(name.startswith("state/") for name in self._tensors)

    def slots(self, layer: str) -> int:
        name = f"slots/{layer}/pass_rows"
        return int(self[name].sum()) if name in self else 0

    def tag(self, layer: str, tag: str) -> Array:
        """A tag's column, strings as their codes: `strings` has the texts."""
        return self[f"tags/{layer}/{tag}"]

    def strings(self, layer: str, tag: str) -> Array:
        return np.array(self.info.strings[f"{layer}/{tag}"], dtype=np.str_)

    def check(self) -> None:
        """Read every byte against its checksum."""
        for name in self._tensors:
            content = np.ascontiguousarray(self[name]).reshape(-1).view(np.uint8)
            if zlib.crc32(content.data) != self._checksums.get(name):
                raise RunError(f"{self.path} is damaged: the checksum of {name} does not fit")


class Run:
    """A run directory, opened. `unread` says why shards after the valid prefix were left out, if any."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = _manifest(self.path)
        self.shards: list[Shard] = []
        self.unread: str | None = None
        for index in range(len(list(self.path.glob("shard-*.safetensors")))):
            try:
                shard = Shard(self.path / shard_name(index))
                self._check_follows(shard, index)
            except RunError as error:
                self.unread = str(error)
                break
            self.shards.append(shard)
        if not self.shards:
            raise RunError(f"{self.path} has no readable shard: {self.unread or 'nothing was sealed yet'}")

    def _check_follows(self, shard: Shard, index: int) -> None:
        info = shard.info
        if (info.run, info.index) != (self.manifest.run, index):
            raise RunError(f"{shard.path} belongs to another run or another place in it")
        if info.first_step != (self.shards[-1].info.last_step if self.shards else 0):
            raise RunError(f"{shard.path} does not go on where the shard before it ends")

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

    @property
    def tags(self) -> dict[str, str]:
        return self.shards[-1].info.tags

    @cached_property
    def layers(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.manifest.layers}

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


def _manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not path.is_dir():
        raise RunError(f"there is no run at {path}: no such directory")
    try:
        return Manifest.from_json(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise RunError(f"{path} is not a dualform run: it has no {MANIFEST}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read {file}: {error}") from None
