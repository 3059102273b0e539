"""The directory of a run: emptied for a new one, or cut back for one that goes on; both behind the lock.

Shards are removed from the last to the first, so that whatever stops this leaves a shorter run, not a broken one.
"""

import re
import shutil
from pathlib import Path

from dualform.errors import CannotResume, RunError, RunExists, StorageError, listing
from dualform.store.files import TEMPORARY, flush_directory, make_directory
from dualform.store.lock import Lock
from dualform.store.reader import Run, Shard, read_manifest
from dualform.store.schema import LOCK, MANIFEST, shard_name

_SHARD = re.compile(r"shard-(\d{6,})\.safetensors(\.tmp)?")


def claim(path: Path, overwrite: bool) -> Lock:
    """An empty directory for a run; an old run goes only if told, anything else never."""
    try:
        if path.exists() and not path.is_dir():
            raise RunExists(f"{path} is a file; a run needs a directory of its own")
        make_directory(path)
        _check_replaceable(path, overwrite)
        lock = Lock(path)  # raises while someone is recording there
        try:
            _check_replaceable(path, overwrite)  # once more: now nobody else can change it
            _empty(path)
        except BaseException:
            lock.release()
            raise
        return lock
    except OSError as error:
        raise StorageError(f"cannot use {path} for a run: {error.strerror or error}") from error


def _check_replaceable(path: Path, overwrite: bool) -> None:
    names = _names(path) - {LOCK, MANIFEST + TEMPORARY, shard_name(0) + TEMPORARY}
    if not names or (names == {MANIFEST} and _is_ours(path)):  # left by a recording that sealed nothing
        return
    if MANIFEST not in names:
        raise RunExists(f"{path} is not empty and not a dualform run; choose another directory")
    if not overwrite:
        raise RunExists(
            f"{path} already holds a run; choose another directory, pass overwrite=True to replace it, or "
            "resume=STEP to go on with it"
        )


def _is_ours(path: Path) -> bool:
    try:
        read_manifest(path)
    except RunError:
        return False
    return True


def _names(path: Path) -> set[str]:
    return {one.name for one in path.iterdir()}


def _empty(path: Path) -> None:
    """Remove everything but the lock; the manifest last, so that it can be told what this was."""
    _remove_shards(path, 0)
    for one in (path / name for name in _names(path) - {LOCK, MANIFEST}):
        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    if (path / MANIFEST).exists():
        flush_directory(path)
        (path / MANIFEST).unlink()


def _remove_shards(path: Path, first: int) -> None:
    """Remove all shards from a number on, whole or unfinished."""
    found = [(int(match[1]), name) for name in _names(path) if (match := _SHARD.fullmatch(name))]
    later = sorted(one for one in found if one[0] >= first)
    for _, name in reversed(later):
        (path / name).unlink()
        flush_directory(path)  # or a power cut might bring it back without the one before it


class Resumption:
    """A run that goes on at a step: locked and looked at, and only then, by `cut`, changed."""

    def __init__(self, path: Path, step: int) -> None:
        read_manifest(path)  # before a lock file is made where no run is
        self.lock = Lock(path)
        try:
            self.run = Run(path)
            self.snapshot = self._at(step)
        except BaseException:
            self.lock.release()
            raise

    def _at(self, step: int) -> Shard:
        sealed = self.run.sealed
        if step not in sealed:
            raise CannotResume(
                f"{self.run.path} was never sealed at step {step}; it can be resumed from {listing(sealed)}. "
                "Call recorder.sync() where you save a checkpoint"
            )
        return sealed[step]

    @property
    def kinds(self) -> dict[str, str] | None:
        """The kind of each tag before the step; None: no slot has said so yet."""
        names = [layer.name for layer in self.run.manifest.layers]
        return next((one.info.tags for one in self.kept if any(map(one.slots, names))), None)

    @property
    def kept(self) -> list[Shard]:
        """The shards that stay."""
        return self.run.shards[: self.snapshot.info.index + 1]

    def cut(self) -> None:
        """Drop what came after the step."""
        try:
            _remove_shards(self.run.path, len(self.kept))
        except OSError as error:
            raise StorageError(f"cannot cut {self.run.path} back: {error.strerror or error}") from error
