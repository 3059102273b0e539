"""Open a run: the manifest and the longest valid prefix of its shards, as memory maps.

Of a run that several processes recorded, it is the longest prefix that all of them have.

Opening reads headers and sizes only. No torch here, so that asking a run what it is costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.errors import RunError
from dualform.store.backend import Backend, LocalFiles, Where, open_backend
from dualform.store.chain import Chain, cut_to_common, read_chain
from dualform.store.coverage import Coverage, coverage
from dualform.store.parse import manifest_from_json
from dualform.store.schema import GRADIENTS, MANIFEST, MAX_HEADER_BYTES, Manifest, Parameter, ledger_tensor
from dualform.store.shard import Shard


class Replay(Protocol):
    """Makes slots that are not stored again."""

    @property
    def parts(self) -> Sequence[Shard]:
        """Parts of the run's chapters, in order."""

    @property
    def notes(self) -> list[str]:
        """What a reader should know of it."""

    @property
    def residuals(self) -> Mapping[int, float]:
        """The largest share of a gradient that its slots left unexplained, by step."""


class Run:
    """A run, opened: `Run("runs/mnist")`, or of any backend.

    `unread` says why shards after the valid prefix were left out, if any.

    Args:
        where: Its directory, or a backend.
        replay: Returns what makes slots again that are not stored, given the run.
    """

    def __init__(self, where: Where, replay: "Callable[[Run], Replay] | None" = None) -> None:
        self.backend = open_backend(where)
        self.manifest = read_manifest(self.backend)
        chains = [read_chain(self.backend, self.manifest, rank) for rank in range(self.manifest.world)]
        self.unread = next((chain.unread for chain in chains if chain.unread), None)
        cut_to_common(chains)
        self.chains = [chain.shards for chain in chains]  # of each process that recorded it
        self.shards = self.chains[0]  # with the state, and all that is the same in all processes
        if not self.shards:
            reason = self.unread or "nothing was sealed yet"
            others = f", in all of its {len(chains)} processes" if len(chains) > 1 else ""
            raise RunError(f"{self.backend.describe()} has no readable shard: {reason}{others}")
        self.tags = self._common_tags(chains)  # name -> kind, of every slot there is
        self.dropped = self.shards[-1].info.dropped  # layers that were not recorded to the end, and from which step
        self.layers = {layer.name: layer for layer in self.manifest.layers if layer.name not in self.dropped}
        self.steps = self.shards[-1].info.last_step
        self.final = self.snapshot(self.steps)
        pairs = zip(self.shards, self.shards[1:], strict=False)
        # each shard with steps, after the shard before it
        self.chapters = [(before, shard) for before, shard in pairs if shard.info.last_step > shard.info.first_step]
        self._make_replay = replay
        self.replay = None if replay is None else replay(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place it is in; whoever unpickles it opens it there."""
        return Run, (self.backend, self._make_replay)

    @property
    def path(self) -> Path:
        """The directory of a run of local files, which may hold other files too; raises for any other run."""
        if not isinstance(self.backend, LocalFiles):
            raise RunError(f"the run in {self.backend.describe()} has no directory: it is not made of local files")
        return self.backend.directory

    def _common_tags(self, chains: Sequence[Chain]) -> dict[str, str]:
        known = [chain.tags for chain in chains if chain.tags is not None]
        if any(tags != known[0] for tags in known):
            raise RunError(f"the processes that recorded {self.backend.describe()} gave different tags")
        return dict(known[0]) if known else {}

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
        return sum(shard.nbytes for shards in self.chains for shard in shards)

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
        notes = [note for shards in self.chains for shard in shards for note in shard.info.notes]
        return list(dict.fromkeys([*notes, *(self.replay.notes if self.replay else ())]))

    def slots(self, layer: str) -> int:
        return sum(shard.slots(layer) for shard in self.slot_shards(layer))

    def slot_shards(self, layer: str) -> list[Shard]:
        """Return the shards that have slots of a layer: process by process, each in the order of steps."""
        if self.replay is not None and not self.layers[layer].stored:
            return [part for part in self.replay.parts if part.slots(layer)]
        return [shard for shards in self.chains for shard in shards if shard.slots(layer)]

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
