"""Write a run: gather steps into chapters and seal each as a shard, in the background.

At most two chapters are in memory, one being filled and one being written; if the disk is slower
than the training, training waits. A shard holds steps and the state *after* them, so every sealed
chapter can be certified at once, and recording can go on from there; shard 0 has no steps, only the
state the run began with.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Self

import numpy as np

from dualform.errors import DualformError, StorageError
from dualform.store.backend import Lock, Where, open_backend
from dualform.store.chapter import Chapter, EqualColumns, Rows, StepRecord, pass_columns, slot_columns, tag_columns
from dualform.store.codec.dedup import KeyPool
from dualform.store.codec.texts import Texts
from dualform.store.directory import claim
from dualform.store.parse import manifest_from_json
from dualform.store.schema import MANIFEST, MAX_HEADER_BYTES, STATE, Layer, Manifest, ShardInfo, shard_name, slot_tensor
from dualform.store.shard import Shard
from dualform.store.shard_file import Column, write_shard
from dualform.store.validate import check_contents
from dualform.strict_json import printable

_MAX_UNSEALED_SECONDS = 60.0  # of training that a crash may cost,
_MIN_SNAPSHOTS = 8  # unless fewer slots have come than this many times the snapshot that is written with them

State = Mapping[str, Column]  # "parameters/0.weight" -> tensor, and so on


class RunWriter:
    """`append` steps, `seal` when `full`, `close` at the end.

    A new run is made by `begin`; one that goes on has the shards that stay in `kept`.
    """

    def __init__(
        self,
        where: Where,
        manifest: Manifest,
        lock: Lock,
        chapter_bytes: int,
        kept: Sequence[Shard] = (),
        rank: int = 0,
    ) -> None:
        self._rank = rank
        self._where = open_backend(where).describe()  # for messages
        self._manifest, self._lock, self._chapter_bytes = manifest, lock, chapter_bytes
        self._ends = [shard.info.last_step for shard in kept]  # the last step of each shard on the disk
        self._previous = kept[-1].digest if kept else manifest.digest
        self._sealed = kept[-1].info.last_step if kept else 0  # steps on the disk
        self._writable = True  # False while a shard is written, and if that failed
        self._pools = {layer.name: _pool(layer, kept) for layer in manifest.layers}
        self._chapter = Chapter(self._sealed, dropped=kept[-1].info.dropped if kept else {})
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dualform-writer")
        self._writing: Future[None] | None = None
        self._begun = 0.0  # when the chapter's first step came
        self._state_nbytes = kept[-1].state_nbytes if kept else 0  # of the last snapshot

    @classmethod
    def begin(cls, where: Where, manifest: Manifest, state: State, chapter_bytes: int, overwrite: bool) -> Self:
        """Begin a new run: write what is known before its first step."""
        backend, text = open_backend(where), manifest.to_json()
        if len(text.encode()) > MAX_HEADER_BYTES:
            raise StorageError(
                f"the manifest of {backend.describe()} would take {len(text.encode()):,} bytes, more than the "
                f"{MAX_HEADER_BYTES:,} that are read: keep what is large in a file of its own, not in `about`"
            )
        manifest_from_json(text, backend.describe(MANIFEST))  # what could not be read must not be begun
        lock = claim(backend, overwrite)
        try:
            writer = cls(backend, manifest, lock, chapter_bytes)
            lock.write(MANIFEST, [np.frombuffer(text.encode(), dtype=np.uint8)])
            writer._state_nbytes = _nbytes(state)
            writer._write(writer._chapter, state, None)
        except BaseException:
            lock.release()
            raise
        return writer

    @classmethod
    def join(cls, where: Where, manifest: Manifest, chapter_bytes: int, rank: int) -> Self:
        """Begin the chain of one more process, which writes its slots only, in a run that the first one has begun."""
        backend = open_backend(where)
        lock = backend.lock(rank)
        try:
            writer = cls(backend, manifest, lock, chapter_bytes, rank=rank)
            writer._write(writer._chapter, {}, None)
        except BaseException:
            lock.release()
            raise
        return writer

    @property
    def nbytes(self) -> int:
        """What has come since the last seal: keys and values count, also those that are not stored."""
        return self._chapter.nbytes

    @property
    def snapshot_nbytes(self) -> int:
        """The size of the last snapshot."""
        return self._state_nbytes

    @property
    def full(self) -> bool:
        """Whether to seal: the chapter is large, or old and large enough for a snapshot not to matter."""
        # of several processes, the first one knows how large a snapshot is
        old = not self._rank and bool(self._chapter.steps) and monotonic() - self._begun >= _MAX_UNSEALED_SECONDS
        enough = min(_MIN_SNAPSHOTS * self._state_nbytes, self._chapter_bytes) if old else self._chapter_bytes
        return self._chapter.nbytes >= enough

    def check(self) -> None:
        """Raise what went wrong in the background, if anything has."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def append(self, step: StepRecord, tags: Mapping[str, str]) -> None:
        """Take one more step."""
        if not self._chapter.steps:
            self._begun = monotonic()
        self._chapter.append(step, tags)

    @property
    def dropped(self) -> Mapping[str, int]:
        """The layers that are not recorded any more, each with the first step it is missing from."""
        return self._chapter.dropped

    def drop(self, layers: Iterable[str]) -> None:
        """Leave layers out from the next step on."""
        self._chapter.dropped = {**self.dropped, **dict.fromkeys(layers, self._chapter.last_step)}

    def put(self, merged: Mapping[str, Rows]) -> None:
        """Take the sums of each layer's slots in the steps since the last seal."""
        self._chapter.merged |= merged

    def note(self, text: str) -> None:
        """Keep a text for whoever reads the run, with the steps since the last seal."""
        self._chapter.notes.append(printable(text))

    def seal(self, state: State, ended: str | None = None, done: Callable[[], None] = lambda: None) -> None:
        """Hand the chapter over to be written, then call `done`. Waits for the one before it."""
        if not self._lock.held:  # nor is the thread in a forked process
            raise StorageError(
                f"{self._where} can be recorded to by the process that began it, not by one forked from it"
            )
        self.wait()
        self._state_nbytes = _nbytes(state)  # here and not in the background, so that chapters end where they always do
        try:
            self._writing = self._thread.submit(self._write, self._chapter, state, ended)
        except RuntimeError as error:  # no more threads, or the interpreter is shutting down
            raise StorageError(f"cannot write {self._where}: {error}") from error
        self._chapter = Chapter(self._chapter.last_step, dropped=self._chapter.dropped)
        self._writing.add_done_callback(lambda _: done())

    def wait(self) -> None:
        """Wait until everything sealed is on the disk; raise what went wrong."""
        if self._writing is None:
            return
        try:
            self._writing.result()  # an interrupt here leaves it to be waited for again
        except Exception as error:
            known = isinstance(error, DualformError)
            reason = str(error) if known else f"cannot write {self._where}: {type(error).__name__}: {error}"
            kept = "" if self._lock.removed else f". The first {self._sealed:,} steps are kept"
            raise StorageError(f"{reason}{kept}") from error
        self._writing = None

    def close(self, state: State, ended: str) -> None:
        """Seal what there is as the run's end, and release the run."""
        try:
            self.seal(state, printable(ended))
            self.wait()
            if self._lock.moved:
                warnings.warn(
                    f"{self._where} was renamed while it was recorded to: all of the run is in the directory by its "
                    "new name",
                    stacklevel=2,
                )
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the run without writing another byte; what was sealed stays."""
        try:
            self._thread.shutdown(wait=True)
        finally:
            self._lock.release()

    def _write(self, chapter: Chapter, state: State, ended: str | None) -> None:
        if not self._writable:  # the pools know keys that are on no disk
            raise StorageError(f"cannot write {self._where}: a chapter before could not be written")
        if chapter.steps and chapter.last_step == self._sealed:
            # an interrupt came while it was handed over, and so it was twice
            chapter = Chapter(self._sealed, dropped=chapter.dropped)
        self._writable = False
        self._check_whole()
        columns = {f"{STATE}{name}": column for name, column in state.items()} | chapter.tables()
        texts = {tag: Texts() for tag, kind in chapter.tags.items() if kind == "string"}
        layers = {layer.name: chapter.passes(layer.name) for layer in self._manifest.layers}
        slots = {layer: passes for layer, passes in layers.items() if passes}
        tags = EqualColumns()
        for layer, passes in slots.items():
            if passes[0][1].keys is None:
                columns |= pass_columns(layer, passes)
            else:
                columns |= slot_columns(layer, passes) | self._pools[layer].columns(layer, [rows for _, rows in passes])
            for tag in chapter.tags:
                tags.add(tag, tag_columns(layer, tag, [rows.tags[tag] for _, rows in passes], texts.get(tag)))
        columns |= tags.columns
        for tag, of_tag in texts.items() if slots else ():
            columns |= of_tag.columns(tag)
        info = ShardInfo(
            self._manifest.run, len(self._ends), self._previous, chapter.first_step, chapter.last_step,
            dict(chapter.tags), ended, dict(chapter.dropped), tuple(chapter.notes), self._rank, tags.same,
        )  # fmt: skip
        try:
            contents = {name: column.entry(0) for name, column in columns.items()}
            aliases = {name: contents[other] for name, other in tags.same.items()}
            check_contents(self._manifest, info, contents | aliases)
            self._previous = write_shard(self._lock, shard_name(len(self._ends), self._rank), columns, info)
        except ValueError as error:  # what could not be read must not be written
            raise StorageError(f"cannot write {self._where}: {error}") from error
        self._ends.append(chapter.last_step)
        self._sealed, self._writable = chapter.last_step, True

    def _check_whole(self) -> None:
        """Raise unless all that was written is there: what comes after a gap could not be read."""
        if self._lock.removed:  # somebody else's run may be there by now
            raise StorageError(f"cannot write {self._where}: the directory was removed while it was recorded to")
        names = self._lock.names()
        for index in range(len(self._ends)):
            if (name := shard_name(index, self._rank)) not in names:
                self._sealed = self._ends[index - 1] if index else 0
                raise StorageError(f"{name} was removed from {self._where} while it was recorded to")


def _nbytes(state: State) -> int:
    return sum(column.nbytes for column in state.values())


def _pool(layer: Layer, kept: Sequence[Shard]) -> KeyPool:
    """Return the pool of a layer, which knows the keys that are stored already."""
    pool = KeyPool()
    keys, exponents, index = (slot_tensor(layer.name, name) for name in ("keys", "key_exponent", "key_index"))
    for shard in (shard for shard in kept if keys in shard):
        scaled, indexed = exponents in shard, index in shard
        pool.recall(shard[keys], shard[exponents] if scaled else None, shard.slots(layer.name) if indexed else None)
    return pool
