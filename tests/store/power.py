"""What a disk may hold after a power cut, in the manner of checkers of crash consistency.

    model = Model(directory)           # as it is now: all of it is flushed
    for point in disk.points:
        model.do(point)
        for tree in model.after_a_cut():
            ...

A file has the bytes that were written to it, and those it had when it was last flushed. A directory has entries,
those it had when it was last flushed, and the changes in between: a cut lets any number of them happen. What a
directory does to its entries and what a file has in it are two things; nothing but a flush orders them.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, product
from pathlib import Path
from typing import Any

from tests.store.faults import Point

Tree = dict[str, bytes]  # the files of a disk, each by its path


@dataclass
class File:
    """The bytes that were written, and those of them that are safe."""

    written: bytes = b""
    flushed: bytes = b""

    def do(self, point: Point) -> None:
        if point.call == "write":
            gap = bytes(point.start - len(self.written))  # none, if it is negative
            self.written = self.written[: point.start] + gap + point.content + self._after(point)
        elif point.call == "truncate":
            self.written = self.written[: point.start]
        elif point.call == "open" and point.flags & os.O_TRUNC:
            self.written = b""
        elif point.call == "fsync":
            self.flushed = self.written

    def _after(self, point: Point) -> bytes:
        return self.written[point.start + len(point.content) :]

    def after_a_cut(self, loss: str) -> bytes:
        """With everything written, with what was flushed, or with room for the rest and nothing in it."""
        room = bytes(max(0, len(self.written) - len(self.flushed)))
        return {"nothing": self.written, "bytes": self.flushed, "bytes, not lengths": self.flushed + room}[loss]


LOSSES = ("nothing", "bytes", "bytes, not lengths")


@dataclass(frozen=True)
class Change:
    """An entry of a directory goes, or comes, or both at once."""

    gone: str | None = None
    come: str | None = None
    node: Any = None

    def apply(self, entries: dict[str, Any]) -> None:
        if self.gone is not None:
            entries.pop(self.gone, None)
        if self.come is not None:
            entries[self.come] = self.node


@dataclass
class Directory:
    """Entries as they are, as they were when last flushed, and what was done since then."""

    entries: dict[str, Any] = field(default_factory=dict)
    flushed: dict[str, Any] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        change.apply(self.entries)
        self.changes.append(change)

    def flush(self) -> None:
        self.flushed, self.changes = dict(self.entries), []

    def directories(self) -> Iterator["Directory"]:
        """Itself and all that are or were in it."""
        yield self
        nodes = [*self.flushed.values(), *(change.node for change in self.changes)]
        for node in {id(node): node for node in nodes if isinstance(node, Directory)}.values():
            yield from node.directories()


class Model:
    """A disk below a directory, from a moment at which everything on it is safe."""

    def __init__(self, directory: Path) -> None:
        self._root = Directory()
        for path in sorted(directory.rglob("*")):
            content = b"" if path.is_dir() else path.read_bytes()
            node = Directory() if path.is_dir() else File(content, content)
            parent = self._at(path.relative_to(directory).parent)
            parent.change(Change(come=path.name, node=node))
            parent.flush()

    def _at(self, path: Path) -> Any:
        node: Any = self._root
        for name in path.parts:
            node = node.entries[name]
        return node

    def do(self, point: Point) -> None:
        """As the disk did it."""
        parent, name = self._at(point.path.parent), point.path.name
        if point.call == "mkdir":
            parent.change(Change(come=name, node=Directory()))
        elif point.call in ("unlink", "remove", "rmdir"):
            parent.change(Change(gone=name))
        elif point.call in ("replace", "rename"):
            assert point.target is not None
            assert point.target.parent == point.path.parent  # between directories it would be two changes
            parent.change(Change(name, point.target.name, parent.entries[name]))
        elif point.of_directory:
            if point.call == "fsync":
                self._at(point.path).flush()
        else:
            if point.call == "open" and name not in parent.entries:
                parent.change(Change(come=name, node=File()))
            parent.entries[name].do(point)

    def now(self) -> Tree:
        """What there is while there is power."""
        everything = {id(one): one.changes for one in self._root.directories()}
        return dict(_files(self._root, everything, "nothing"))

    def after_a_cut(self, in_order: bool) -> Iterator[Tree]:
        """All that may be left, if the changes of a directory happen one after the other, or in any order."""
        directories = list(self._root.directories())
        for chosen in product(*(_chosen(one.changes, in_order) for one in directories)):
            happened = {id(one): changes for one, changes in zip(directories, chosen, strict=True)}
            for loss in LOSSES:
                yield dict(_files(self._root, happened, loss))


Happened = Mapping[int, Sequence[Change]]  # of each directory


def _chosen(changes: list[Change], in_order: bool) -> list[list[Change]]:
    if in_order:
        return [changes[:count] for count in range(len(changes) + 1)]
    return [list(compress(changes, kept)) for kept in product((False, True), repeat=len(changes))]


def _files(directory: Directory, happened: Happened, loss: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    entries = dict(directory.flushed)
    for change in happened[id(directory)]:
        change.apply(entries)
    for name, node in entries.items():
        if isinstance(node, File):
            yield prefix + name, node.after_a_cut(loss)
        else:
            yield from _files(node, happened, loss, f"{prefix}{name}/")


def tree_of(directory: Path) -> Tree:
    """The files below a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def plant(tree: Tree, directory: Path) -> None:
    """The other way round."""
    for name, content in tree.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
