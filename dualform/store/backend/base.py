"""What a run needs of the place its bytes live in: a flat set of named objects, and a lock for each writer.

    backend.create()
    lock = backend.lock()                       # raises while somebody else writes there
    lock.write("manifest.json", [content])      # whole or not there, and durable
    blob = backend.open("manifest.json")
    blob.read(0, blob.size)
    lock.release()

Names are plain: they contain no separators. Any number of readers may look while one writer, who holds the lock,
writes and deletes; each process of a distributed training writes objects of its own, and has a lock for these. What
fails raises an OSError, a FileNotFoundError where there is no such object, unless an operation says otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dualform.atomic_file import Bytes


class Blob(Protocol):
    """An object, opened. It stays as it was opened, whatever is written or deleted under its name since."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    def read(self, start: int, stop: int) -> Bytes:
        """Return the bytes from `start` to before `stop`, which are within its size: (stop - start,).

        They are the reader's own: writing to them changes no object. They need not be read from the disk before
        they are looked at.
        """


@dataclass(frozen=True)
class ArrayBlob:
    """An object whose bytes can all be addressed: mapped, or in memory."""

    content: Bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, start: int, stop: int) -> Bytes:
        return self.content[start:stop]


class Lock(Protocol):
    """The right to write, from `Backend.lock` until `release`, or until the process ends, however it ends.

    It is of the place that was locked: should that be moved, objects are written to where it is now.
    """

    @property
    def held(self) -> bool:
        """Whether it is held by this process; a process forked from the one that took it does not hold it."""

    @property
    def removed(self) -> bool:
        """Whether everything was removed from under it, so that somebody else may be writing there by now."""

    @property
    def moved(self) -> bool:
        """Whether the place has another name by now."""

    def names(self) -> set[str]:
        """Return the names of all objects, unfinished ones too."""

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        """Write an object, or replace it, atomically: it has all pieces, or it is as it was before.

        It is durable when this returns: no crash and no power cut takes it away. Raises a StorageError; what the
        pieces themselves raise, while they are made, is passed on.
        """

    def delete(self, name: str) -> None:
        """Delete an object; durable, so that deletions happen in their order."""

    def release(self) -> None:
        """Let the next writer in. To release twice does no harm."""


@runtime_checkable
class Backend(Protocol):
    """A place for the objects of one run."""

    def describe(self, name: str | None = None) -> str:
        """Return what messages call an object, or the whole place."""

    def exists(self) -> bool:
        """Whether the place is there at all, with or without objects."""

    def create(self) -> None:
        """Make the place, unless it is there; durable. Raises RunExists if something else is in the way."""

    def names(self) -> set[str]:
        """Return the names of all objects, unfinished ones too, but not that of a lock; none if there is no place."""

    def open(self, name: str) -> Blob:
        """Open an object to be read, without reading it. Raises a ValueError for what cannot be one, such as a pipe."""

    def lock(self, rank: int = 0) -> Lock:
        """Take the lock. Raises RunExists while somebody else holds it, and a StorageError if it cannot be taken.

        Args:
            rank: Of a process of a distributed training, each of which has a lock of its own. Of a backend that takes
                no rank, runs of one process can be made.
        """
