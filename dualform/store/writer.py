"""Writes a run: gathers steps into chapters and seals each as a shard, in the background.

At most two chapters are in memory, one being filled and one being written; if the disk is slower
than the training, training waits. A shard holds steps and the state *after* them, so every sealed
chapter can be certified at once; shard 0 has no steps, only the state the run began with.
"""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dualform.errors import RunExists, StorageError
from dualform.store.chapter import Chapter, Rows, StepRecord, slot_columns, tag_column
from dualform.store.files import Column, Lock, write_atomically, write_shard
from dualform.store.format import LOCK, MANIFEST, Manifest, ShardInfo, shard_name
from dualform.store.repeats import KeyPool

State = Mapping[str, Column]  # "parameters/0.weight" -> tensor, and so on


class RunWriter:
    """`append` steps, `seal` when `full`, `close` at the end."""

    def __init__(self, path: Path, manifest: Manifest, state: State, chapter_bytes: int) -> None:
        self.path = path
        self._manifest = manifest
        self._chapter_bytes = chapter_bytes
        self._chapter = Chapter(0)
        self._tags: dict[str, str] = {}
        self._index = 0
        self._pools = {layer.name: KeyPool() for layer in manifest.layers}
        self._lock = Lock(path / LOCK)
        try:
            write_atomically(path / MANIFEST, [np.frombuffer(manifest.to_json().encode(), dtype=np.uint8)])
            self._write(self._chapter, state, None)
        except BaseException:
            self._lock.release()
            raise
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dualform-writer")
        self._writing: Future[None] | None = None

    @property
    def steps(self) -> int:
        return self._chapter.last_step

    @property
    def full(self) -> bool:
        return self._chapter.nbytes >= self._chapter_bytes

    def check(self) -> None:
        """Raise what went wrong in the background, if anything has."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def append(self, step: StepRecord, tags: dict[str, str]) -> None:
        """Take one more step."""
        self._tags = tags
        self._chapter.append(step)

    def put(self, merged: Mapping[str, Rows]) -> None:
        """Take the sums of each layer's slots in the steps since the last seal."""
        self._chapter.merged |= merged

    def seal(self, state: State, ended: str | None = None, done: Callable[[], None] = lambda: None) -> None:
        """Hand the chapter over to be written, then call `done`. Waits for the one before it."""
        self.wait()
        chapter, self._chapter = self._chapter, Chapter(self._chapter.last_step)
        self._writing = self._thread.submit(self._write, chapter, state, ended)
        self._writing.add_done_callback(lambda _: done())

    def wait(self) -> None:
        """Until everything sealed is on the disk; raises what went wrong."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self, state: State, ended: str) -> None:
        """Seal what there is as the run's end, and give the run free."""
        try:
            self.seal(state, ended)
            self.wait()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the run free without another byte; what was sealed stays."""
        self._thread.shutdown(wait=True)
        self._lock.release()

    def _write(self, chapter: Chapter, state: State, ended: str | None) -> None:
        columns = {f"state/{name}": column for name, column in state.items()} | chapter.tables()
        strings: dict[str, list[str]] = {}
        for layer in (layer.name for layer in self._manifest.layers):
            passes = chapter.passes(layer)
            if not passes:
                continue
            columns |= slot_columns(layer, passes) | self._pools[layer].columns(layer, [r for _, r in passes])
            for tag in self._tags:
                column, texts = tag_column([rows.tags[tag] for _, rows in passes])
                columns[f"tags/{layer}/{tag}"] = column
                if texts is not None:
                    strings[f"{layer}/{tag}"] = texts
        info = ShardInfo(
            self._manifest.run, self._index, chapter.first_step, chapter.last_step, self._tags, strings, ended
        )
        write_shard(self.path / shard_name(self._index), columns, info)
        self._index += 1


def prepare(path: Path, overwrite: bool) -> None:
    """Make an empty directory for a run; an old run goes only if told, anything else never."""
    try:
        if path.exists() and not path.is_dir():
            raise RunExists(f"{path} is a file; a run needs a directory of its own")
        if path.is_dir() and any(path.iterdir()):
            if not (path / MANIFEST).is_file():
                raise RunExists(f"{path} is not empty and not a dualform run; choose another directory")
            if not overwrite:
                raise RunExists(f"{path} already holds a run; choose another directory or pass overwrite=True")
            Lock(path / LOCK).release()  # raises while someone is recording there
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot use {path} for a run: {error.strerror or error}") from error
