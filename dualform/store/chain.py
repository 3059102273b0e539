"""Read a chain of shards: what one process wrote of a run, up to its first gap or damage.

    chain = read_chain(backend, manifest, rank=0)
    chain.shards, chain.unread

A run of several processes has a chain for each of them. Each shard repeats the digest of the one before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dualform.errors import RunError
from dualform.store.backend import Backend
from dualform.store.schema import Manifest, shard_name
from dualform.store.shard import Shard


@dataclass
class Chain:
    """The shards of one process that can be read; `unread` says why there are no more of them, if anything is wrong."""

    rank: int
    shards: list[Shard] = field(default_factory=list)
    tags: Mapping[str, str] | None = None  # of its slots; None: there are none
    unread: str | None = None


def read_chain(backend: Backend, manifest: Manifest, rank: int) -> Chain:
    """Read the headers of a chain; raise a RunError for what cannot be opened now, and may be sound."""
    chain = Chain(rank)
    for index in range(_count(backend, rank)):
        name = shard_name(index, rank)
        try:
            shard = Shard(backend, name)
            _check_follows(shard, index, chain, manifest)
            _check_tags(shard, manifest, chain.tags)
        except FileNotFoundError:
            if _count(backend, rank) > index:  # or else the run was cut back just now
                chain.unread = f"{backend.describe(name)} is missing"
            break
        except (OSError, MemoryError) as error:  # no proof of damage: what cannot be opened now may be sound
            raise RunError(f"cannot open {backend.describe(name)} now, so the run is not read: {error}") from error
        except RunError as error:
            chain.unread = str(error)
            break
        if chain.shards:
            chain.shards[-1].following, shard.before = shard, chain.shards[-1]
        chain.shards.append(shard)
        if _has_slots(shard, manifest):
            chain.tags = shard.info.tags
    return chain


def cut_to_common(chains: list[Chain]) -> None:
    """Leave of each chain what all of them have: the same chapters, with the same tags."""
    first, *others = chains
    for chain in others:
        common = 0
        for shard, other in zip(first.shards, chain.shards, strict=False):
            if (shard.info.first_step, shard.info.last_step) != (other.info.first_step, other.info.last_step):
                break
            if shard.info.dropped != other.info.dropped:
                break
            common += 1
        for of_rank in chains:
            del of_rank.shards[common:]
    for shard in (chain.shards[-1] for chain in chains if chain.shards):
        shard.following = None


def _count(backend: Backend, rank: int) -> int:
    start = shard_name(0, rank).removesuffix("000000.safetensors")
    try:
        names = backend.names()
    except OSError as error:
        raise RunError(f"cannot list {backend.describe()}: {error.strerror or error}") from None
    return sum(name.startswith(start) and name.endswith(".safetensors") for name in names)


def _check_follows(shard: Shard, index: int, chain: Chain, manifest: Manifest) -> None:
    info, before = shard.info, chain.shards[-1] if chain.shards else None
    if (info.run, info.index, info.rank) != (manifest.run, index, chain.rank):
        raise RunError(f"{shard.path} belongs to another run or another place in it")
    if info.previous != (before.digest if before else manifest.digest):
        raise RunError(f"{shard.path} does not follow the {'shard' if before else 'manifest'} before it")
    if info.first_step != (before.info.last_step if before else 0) or (not before and info.last_step):
        raise RunError(f"{shard.path} does not go on where the shard before it ends")
    if not before and not shard.has_state and not chain.rank:
        raise RunError(f"{shard.path} does not have the state the run began with")
    shard.check_contents(manifest)
    dropped = before.info.dropped if before else {}
    new = {layer: step for layer, step in info.dropped.items() if layer not in dropped}
    if {**dropped, **new} != info.dropped or any(step < info.first_step for step in new.values()):
        raise RunError(f"{shard.path} has dropped other layers than the shards before it, or earlier")


def _check_tags(shard: Shard, manifest: Manifest, expected: Mapping[str, str] | None) -> None:
    if expected is not None and _has_slots(shard, manifest) and shard.info.tags != expected:
        raise RunError(f"{shard.path} has other tags than the shards before it")


def _has_slots(shard: Shard, manifest: Manifest) -> bool:
    return any(shard.slots(layer.name) for layer in manifest.layers)
