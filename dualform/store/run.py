"""Open a run: the manifest and the longest valid prefix of its shards, as memory maps.

Opening reads headers and sizes only. No torch here, so that asking a run what it is costs nothing.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import RunError
from dualform.store.backend import Backend, LocalFiles, Where, open_backend
from dualform.store.coverage import Coverage, coverage
from dualform.store.parse import manifest_from_json
from dualform.store.schema import GRADIENTS, MANIFEST, MAX_HEADER_BYTES, Manifest, Parameter, ledger_tensor, shard_name
from dualform.store.shard import Shard


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
        self._tags_known = False  # by a shard with slots
        for index in range(self._count_shards()):
            try:
                shard = Shard(self.backend, shard_name(index))
                self._check_follows(shard, index)
            except FileNotFoundError:
                if self._count_shards() > index:  # or else the run was cut back just now
                    self.unread = f"{self.backend.describe(shard_name(index))} is missing"
                break
            except (OSError, MemoryError) as error:  # no proof of damage: what cannot be opened now may be sound
                where = self.backend.describe(shard_name(index))
                raise RunError(f"cannot open {where} now, so the run is not read: {error}") from error
            except RunError as error:
                self.unread = str(error)
                break
            if self.shards:
                self.shards[-1].following, shard.before = shard, self.shards[-1]
            self.shards.append(shard)
            if self._has_slots(shard):
                self.tags, self._tags_known = shard.info.tags, True
        if not self.shards:
            reason = self.unread or "nothing was sealed yet"
            raise RunError(f"{self.backend.describe()} has no readable shard: {reason}")
        self.dropped = self.shards[-1].info.dropped  # layers that were not recorded to the end, and from which step
        self.layers = {layer.name: layer for layer in self.manifest.layers if layer.name not in self.dropped}
        self.steps = self.shards[-1].info.last_step
        self.final = self.snapshot(self.steps)
        pairs = zip(self.shards, self.shards[1:], strict=False)
        # each shard with steps, after the shard before it
        self.chapters = [(before, shard) for before, shard in pairs if shard.info.last_step > shard.info.first_step]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place it is in; whoever unpickles it opens it there."""
        return Run, (self.backend,)

    def _count_shards(self) -> int:
        try:
            names = self.backend.names()
        except OSError as error:
            raise RunError(f"cannot list {self.backend.describe()}: {error.strerror or error}") from None
        return sum(name.startswith("shard-") and name.endswith(".safetensors") for name in names)

    @property
    def path(self) -> Path:
        """The directory of a run of local files, which may hold other files too; raises for any other run."""
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
        dropped = before.info.dropped if before else {}
        new = {layer: step for layer, step in info.dropped.items() if layer not in dropped}
        if {**dropped, **new} != info.dropped or any(step < info.first_step for step in new.values()):
            raise RunError(f"{shard.path} has dropped other layers than the shards before it, or earlier")
        if self._has_slots(shard) and self._tags_known and info.tags != self.tags:
            raise RunError(f"{shard.path} has other tags than the shards before it")

    def _has_slots(self, shard: Shard) -> bool:
        return any(shard.slots(layer.name) for layer in self.manifest.layers)

    @property
    def ended(self) -> str | None:
        """How recording ended; None: it was cut off, or is still going on."""
        return self.shards[-1].info.ended

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All that its layers use, each once."""
        return tuple(dict.fromkeys(use.parameter for layer in self.layers.values() for use in layer.uses))

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    @property
    def sealed(self) -> dict[int, Shard]:
        """The shard that ends at each step, with the state after it; the first, if only sealing was done since."""
        ending = {shard.info.last_step: shard for shard in reversed(self.shards) if shard.has_state}
        return {step: ending[step] for step in sorted(ending)}

    @cached_property
    def coverage(self) -> Coverage:
        """Which shares of the trainable numbers this run holds, and how."""
        return coverage(self.manifest, self.accounted, self.dropped)

    @cached_property
    def accounted(self) -> frozenset[str]:
        """The parameters no layer uses of which every step's gradient is there."""
        held = [{name.removeprefix(GRADIENTS) for name in shard.names(GRADIENTS)} for _, shard in self.chapters]
        return frozenset(set.intersection(*held) if held else ())

    @property
    def notes(self) -> list[str]:
        """What its recorder had to say, each once."""
        return list(dict.fromkeys(note for shard in self.shards for note in shard.info.notes))

    def slots(self, layer: str) -> int:
        return sum(shard.slots(layer) for shard in self.shards)

    def ledger(self, parameter: str) -> NDArray[np.float64]:
        """Return all ledger lines of a parameter: (steps, 1 + columns)."""
        lines = [shard[ledger_tensor(parameter)] for _, shard in self.chapters]
        return np.concatenate(lines) if lines else np.empty((0, 0))

    def snapshot(self, step: int) -> Shard:
        """Return the latest shard whose state is from `step` or before."""
        return next(shard for shard in reversed(self.shards) if shard.has_state and shard.info.last_step <= step)


def read_manifest(backend: Backend) -> Manifest:
    """Return the manifest of a run; raise a RunError if there is none."""
    if not backend.exists():
        raise RunError(f"there is no run at {backend.describe()}: no such directory")
    try:
        blob = backend.open(MANIFEST)
        if blob.size > MAX_HEADER_BYTES:
            raise ValueError(f"it is longer than {MAX_HEADER_BYTES:,} bytes")
        return manifest_from_json(blob.read(0, blob.size).tobytes().decode(), backend.describe(MANIFEST))
    except FileNotFoundError:
        raise RunError(f"{backend.describe()} is not a dualform run: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {backend.describe(MANIFEST)}: {error}") from None
