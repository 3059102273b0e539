"""Make room for a run: empty its place for a new one, or cut back one that is resumed; both behind the lock.

Shards are removed from the last to the first, so that whatever stops this leaves a shorter run, not a broken one. No
file is removed but those that a run is made of.
"""

import re
from contextlib import suppress

from dualform.atomic_file import UNFINISHED
from dualform.errors import CannotResume, RunError, RunExists, StorageError, listing
from dualform.store.backend import Backend, Lock, Where, open_backend
from dualform.store.run import Run, read_manifest
from dualform.store.schema import MANIFEST, MAX_HEADER_BYTES, shard_name
from dualform.store.shard import Shard
from dualform.strict_json import parse

_SHARD = re.compile(rf"(?:rank-(\d{{4}})-)?shard-(\d{{6,}})\.safetensors({re.escape(UNFINISHED)})?")


def claim(where: Where, overwrite: bool) -> Lock:
    """Lock a place for a run; an old run that has steps is removed only with `overwrite`.

    What is no run's own is never removed.
    """
    backend = open_backend(where)
    try:
        backend.create()
        _check_replaceable(backend, overwrite)
        lock = backend.lock()  # raises while someone is recording there
        try:
            _check_replaceable(backend, overwrite)  # once more: now nobody else can change it
            _remove_shards(lock, 0, None)  # an old manifest stays until a new one replaces it, to show what this was
        except BaseException:
            lock.release()
            raise
        return lock
    except OSError as error:
        raise StorageError(f"cannot use {backend.describe()} for a run: {error.strerror or error}") from error


def _check_replaceable(backend: Backend, overwrite: bool) -> None:
    names = backend.names() - {MANIFEST + UNFINISHED, shard_name(0) + UNFINISHED}
    if not names or _holds_no_step(backend, names):
        return
    if not _is_ours(backend):
        raise RunExists(f"{backend.describe()} is not empty and not a dualform run; choose another directory")
    if not overwrite:
        raise RunExists(
            f"{backend.describe()} already holds a run; choose another directory, pass overwrite=True to replace it, "
            "or resume=STEP to go on with it"
        )


def _is_ours(backend: Backend) -> bool:
    """Return whether a manifest is one of dualform's, of any version, even if it is damaged or edited."""
    with suppress(OSError, ValueError, RecursionError):
        blob = backend.open(MANIFEST)
        content = parse(blob.read(0, blob.size).tobytes()) if blob.size <= MAX_HEADER_BYTES else None
        return isinstance(content, dict) and content.get("format") == "dualform"
    return False


def _holds_no_step(backend: Backend, names: set[str]) -> bool:
    """Return whether a run, and nothing else, is there, of which no step was sealed: a first try that failed."""
    with suppress(RunError):
        if names == {MANIFEST}:
            read_manifest(backend)
            return True
        run = Run(backend)
        shards = {shard_name(shard.info.index, shard.info.rank) for shards in run.chains for shard in shards}
        return run.steps == 0 and names == {MANIFEST, *shards}
    return False


def _remove_shards(lock: Lock, first: int, rank: int | None) -> None:
    """Remove the shards of a process, or of all, from a number on, whole or unfinished.

    Each removal is durable before the next one begins.
    """
    matches = [match for name in lock.names() if (match := _SHARD.fullmatch(name))]
    shards = [(int(match[2]), match[0]) for match in matches if rank in (None, int(match[1] or 0))]
    for index, name in sorted(shards, reverse=True):
        if index >= first:
            lock.delete(name)


class Resumption:
    """A run that is resumed at a step: locked and checked, and only then, by `cut`, changed.

    Of a run that several processes record, each resumes its own chain.
    """

    def __init__(self, where: Where, step: int, rank: int = 0, world: int = 1) -> None:
        backend = open_backend(where)
        begun = read_manifest(backend)  # before a lock file is made where no run is
        if begun.world != world:
            raise CannotResume(
                f"{backend.describe()} was recorded by {begun.world} processes, and now there are {world}: go on with "
                "as many as before"
            )
        self._rank = rank
        self.lock = backend.lock(rank) if rank else backend.lock()
        try:
            self.run = Run(backend)
            sealed = self.run.sealed
            if step not in sealed:
                raise CannotResume(
                    f"{backend.describe()} was never sealed at step {step}; it can be resumed from {listing(sealed)}. "
                    "Call recorder.sync() where you save a checkpoint"
                )
            self.snapshot = sealed[step]
        except BaseException:
            self.lock.release()
            raise

    @property
    def kinds(self) -> dict[str, str] | None:
        """The kind of each tag before the step; None: no slot has said so yet."""
        names = [layer.name for layer in self.run.manifest.layers]
        return next((shard.info.tags for shard in self.kept if any(map(shard.slots, names))), None)

    @property
    def kept(self) -> list[Shard]:
        """The shards that stay."""
        return self.run.chains[self._rank][: self.snapshot.info.index + 1]

    def cut(self) -> None:
        """Drop what came after the step."""
        try:
            _remove_shards(self.lock, len(self.kept), self._rank)
        except OSError as error:
            where = self.run.backend.describe()
            raise StorageError(f"cannot cut {where} back: {error.strerror or error}") from error
