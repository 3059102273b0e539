"""Make the slots of a run again that are not stored: train from the snapshot before them, under the same recorder.

    run = Run(path, partial(TrainedAgain, recipe, 2 << 30))
    run.slot_shards("fc")               # parts of chapters, whose keys are made when they are asked for

A chapter may be larger than any memory, so it comes in parts, one after the other; those of late are kept as long as
they fit. At the end of each chapter the state is compared with the snapshot that was taken there, bit by bit.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.dual.state import stored_tensor
from dualform.errors import RecipeError
from dualform.recipe.beginning import check_batch, check_beginning, witness_of
from dualform.recipe.recipe import Recipe
from dualform.recipe.repeatable import ONE_AT_A_TIME, repeatable
from dualform.recipe.train import Options, RecordedTraining, plan_of
from dualform.recipe.training import Training
from dualform.recorder.begin import Start
from dualform.recorder.session import Session
from dualform.store import Column, Layer, Rows, Run, Shard, StepRecord
from dualform.store.chapter import Witness, known, slot_columns
from dualform.store.part import Part, StateInMemory, joined
from dualform.store.schema import STATE, slot_tensor, state_tensor
from dualform.store.shard_file import neighbours_joined

Array = NDArray[Any]

_PART_BYTES = 256 << 20  # at most, unless a single step has more
_PARTS_IN_CACHE = 4  # at least
_ALIKE = 1e-3  # a state is the same but for rounding, if it is off by less of what a chapter has changed


class TrainedAgain:
    """A run's slots, made again by its recipe.

    Args:
        recipe: The one that it was trained by.
        cache_bytes: What parts that were made may take.
        run: The run.
    """

    def __init__(self, recipe: Recipe, cache_bytes: int, run: Run) -> None:
        repetition = run.manifest.recipe
        if repetition is None:
            raise RecipeError(f"{run.backend.describe()} was not trained by a recipe: a loop cannot be run again")
        self.recipe, self._run, self._cache_bytes = recipe, run, cache_bytes
        self._threads, self._per_step = repetition.threads, repetition.optimizers
        self._layers = {layer.name: layer for layer in run.layers.values() if not layer.stored}
        self.parts: Sequence[Part] = [part for _, chapter in run.chapters for part in self._divided(chapter)]
        self._cache: OrderedDict[Part, Mapping[str, Array]] = OrderedDict()
        self._states: dict[int, StateInMemory] = {}  # within the chapter that was made last
        self._live: RecordedTraining | None = None
        self._sink = _Sink(self._layers)
        self._residuals: dict[int, float] = {}  # of each step: the largest share of a gradient that was not explained
        self._compared: dict[int, float] = {}  # by the step of the snapshot: how far off the state was
        self._doubt: str | None = None  # what differed first in this chapter
        self._lock = RLock()

    def _divided(self, chapter: Shard) -> Iterator[Part]:
        """Yield a chapter in parts of whole steps."""
        first, last = chapter.info.first_step, chapter.info.last_step
        nbytes, storage = np.zeros(last - first), self._run.manifest.storage
        for layer in self._layers.values():
            if slot_tensor(layer.name, "pass_step") in chapter:
                steps, rows = chapter.passes(layer.name)
                np.add.at(nbytes, steps - first, rows * float(storage.slot_nbytes(layer)))
        most, begun = min(_PART_BYTES, self._cache_bytes / _PARTS_IN_CACHE), first
        for step in range(first + self._per_step, last, self._per_step):
            if nbytes[begun - first : step + self._per_step - first].sum() > most:
                yield Part(chapter, begun, step, self._layers, self._made)
                begun = step
        yield Part(chapter, begun, last, self._layers, self._made)

    @property
    def notes(self) -> list[str]:
        """How far what was made again is what it was."""
        if not self._layers:
            return []
        chapters, off = len(self._compared), max(self._compared.values(), default=0.0)
        if not chapters:
            return ["slots are made again by a recipe, and none was yet"]
        how = "to the last bit" if off == 0 else f"but for {off:.1e} of what it had changed, as on another machine"
        of_all = f"{chapters} of {len(self._run.chapters)} chapters"
        return [f"slots are made again by a recipe: after {of_all} the state was that of its snapshot {how}"]

    @property
    def residuals(self) -> Mapping[int, float]:
        """The largest share of a gradient that was not explained, of each step that was made again."""
        return self._residuals

    def _made(self, part: Part) -> Mapping[str, Array]:
        """Return the columns of a part, from the cache or made now."""
        with self._lock:
            if part in self._cache:
                self._cache.move_to_end(part)
                return self._cache[part]
        # in this order, since whoever follows a training's progress, and so has the first lock, may ask
        with ONE_AT_A_TIME, self._lock:
            if part not in self._cache:
                self._cache[part] = made = self._make(part)
                part.remember(made)
                while len(self._cache) > 1 and sum(map(_nbytes, self._cache.values())) > self._cache_bytes:
                    self._cache.popitem(last=False)
            return self._cache[part]

    def _make(self, part: Part) -> Mapping[str, Array]:
        try:
            with repeatable(self._threads):
                live = self._at(part)
                self._sink.begin(part.info.first_step, part.info.last_step)
                for layer in self._layers:
                    live.session.expect(layer, part.key_rows(layer), part.slots(layer))
                while live.session.steps < part.info.last_step:
                    self._compare(live.training, live.take_step())
                live.session.seal()
        except BaseException:
            self._let_go()
            raise
        self._residuals |= self._sink.residuals
        columns, columns_of_state = self._sink.take()
        state = StateInMemory(part.info, {f"{STATE}{name}": column for name, column in columns_of_state.items()})
        self._check_passes(part, columns)
        if live.session.steps == part.info.last_step:
            self._check_state(part, state)
        return columns

    def _at(self, part: Part) -> RecordedTraining:
        """Return a recorded training that has come to the beginning of a part."""
        first = part.info.first_step
        if self._live is not None and self._live.session.steps == first:
            return self._live
        self._let_go()
        training = Training(self.recipe)
        check_beginning(self._run, training)
        start = self._snapshot_before(first, part)
        training.restore(start)
        while training.step * self._per_step < first:
            self._compare(training, training.take_step())
        storage = self._run.manifest.storage
        options = Options(layers=[*self._layers], dtype=storage.dtype, provenance=False)
        plan = plan_of(training, options, self._threads)
        self._check_plan(plan.manifest.layers)
        session = Session(plan, Start(self._run.backend, resume=first, sink=self._sink), drop_unexplained=False)
        self._live = RecordedTraining(training, session)
        return self._live

    def _snapshot_before(self, step: int, part: Part) -> Shard:
        stored = self._run.snapshot(part.chapter.info.first_step)
        nearest = max((at for at in self._states if at <= step), default=-1)
        if nearest > stored.info.last_step:
            return self._states[nearest]
        self._states = {}
        return stored

    def _let_go(self) -> None:
        """End the live training; its hooks are on a model of ours."""
        if self._live is not None:
            live, self._live = self._live, None
            live.session.close(KeyboardInterrupt)
        self._sink.take()
        self._doubt = None

    # Is it the same training?

    def _check_plan(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            if replace(layer, stored=False) != self._layers[layer.name]:
                raise RecipeError(f"layer {layer.name!r} of the recipe's model is not that of the run")

    def _compare(self, training: Training, now: Witness) -> None:
        """Raise for a batch of other examples; note a loss that is not what it was."""
        number = training.step - 1
        before = witness_of(self._run, training, number)
        check_batch(self._run, number, before, now)
        if now.loss != before.loss and self._doubt is None:
            self._doubt = f"step {number} has a loss of {now.loss:.9g}, and had {before.loss:.9g}"

    def _check_passes(self, part: Part, columns: Mapping[str, Array]) -> None:
        """Raise unless as many rows went through each layer as in training."""
        for layer in self._layers:
            for name in (slot_tensor(layer, column) for column in ("pass_step", "pass_rows", "extents")):
                stored = part[name] if part.slots(layer) and name in part else np.empty(0)
                if not np.array_equal(columns.get(name, np.empty(0)), stored):
                    self._let_go()
                    raise RecipeError(
                        f"other rows went through layer {layer!r} in steps {part.info.first_step:,} to "
                        f"{part.info.last_step:,} than in training: the recipe is not that of {self._where}"
                    )

    def _check_state(self, part: Part, state: StateInMemory) -> None:
        """Compare the state with the snapshot, if there is one; else keep it, to go on from."""
        step, chapter = part.info.last_step, part.chapter
        if step < chapter.info.last_step or not chapter.has_state:
            self._states[step] = state
            while len(self._states) > 1 and sum(map(_nbytes, self._states.values())) > self._cache_bytes:
                del self._states[min(self._states)]
            return
        self._states = {}
        off = {name: _distance(chapter, state, name) for name in state.names(STATE)}
        worst = max(off.values())
        doubt, self._doubt = self._doubt, None
        if worst > _ALIKE:
            self._let_go()
            name = next(name for name, distance in off.items() if distance > _ALIKE)
            raise RecipeError(
                f"the recipe does not train {self._where} again: {doubt or 'losses are the same'}, and by step "
                f"{step // self._per_step:,} {self._in_words(name)} is off by {off[name]:.1e} of what it had changed: "
                "the data, the model or the loss are others"
            )
        self._compared[step] = worst
        if worst:
            self._let_go()  # and go on from the snapshot that was taken

    def _in_words(self, name: str) -> str:
        """Name the layer of a tensor of the state."""
        for layer in self._run.layers.values():
            for use in layer.uses:
                if name == state_tensor(use.parameter.name):
                    return f"{use.parameter.name!r} of layer {layer.name!r}"
        return repr(name.removeprefix(STATE))

    @property
    def _where(self) -> str:
        return self._run.backend.describe()


def _distance(chapter: Shard, state: StateInMemory, name: str) -> float:
    """Return how far a tensor of the state is from the snapshot after a chapter, as a share of what that changed."""
    if name not in chapter.snapshot_names(name):
        return inf
    now, stored = stored_tensor(state, name), stored_tensor(chapter, name)
    if (now.shape, now.dtype) != (stored.shape, stored.dtype):
        return inf
    if torch.equal(now.reshape(-1).view(torch.uint8), stored.reshape(-1).view(torch.uint8)):  # NaN equals itself here
        return 0.0
    before = chapter.before
    there = before is not None and name in before.snapshot_names(name)
    start = stored_tensor(before, name).double() if before is not None and there else torch.zeros_like(stored).double()
    change = float((stored.double() - start).norm())
    distance = float((now.double() - stored.double()).norm())
    share = distance / change if change else distance
    return share if isfinite(share) else inf


def _nbytes(held: Mapping[str, Array] | StateInMemory) -> int:
    arrays = (held[name] for name in held.names(STATE)) if isinstance(held, StateInMemory) else held.values()
    return sum(array.nbytes for array in arrays)


def _key_columns(layer: str, passes: Sequence[Rows]) -> dict[str, Column]:
    """Return all keys, also those that come again."""
    exponents = [rows.key_exponent for rows in passes if rows.key_exponent is not None]
    columns = {"keys": Column(neighbours_joined([known(rows.keys) for rows in passes], writeable=True))}
    if exponents:
        columns["key_exponent"] = Column([np.concatenate(exponents)])
    return {slot_tensor(layer, name): column for name, column in columns.items()}


class _Sink:
    """Takes the steps of a session, and gives their slots as columns."""

    def __init__(self, layers: Iterable[str]) -> None:
        self._layers = [*layers]
        self._steps: list[StepRecord] = []
        self._sealed_steps: list[StepRecord] = []
        self._first = self._last = 0
        self._sealed: tuple[Mapping[str, Array], Mapping[str, Column]] = {}, {}

    dropped: Mapping[str, int] = {}
    full, nbytes, snapshot_nbytes = False, 0, 0

    def append(self, step: StepRecord, tags: Mapping[str, str]) -> None:
        self._steps.append(step)

    def seal(
        self, state: Mapping[str, Column], ended: str | None = None, done: Callable[[], None] = lambda: None
    ) -> None:
        """Put together what has come; memory of rows is not given back, since columns may lie in it."""
        self._sealed, self._sealed_steps, self._steps = (self._columns(), state), self._steps, []

    def begin(self, first: int, last: int) -> None:
        """Wait for steps [first, last); an error may have ended a training between two optimisers' steps."""
        self._first, self._last = first, last

    @property
    def residuals(self) -> dict[int, float]:
        """The largest residual of each step since `begin`."""
        numbered = enumerate((step.residual.values() for step in self._sealed_steps), start=self._first)
        return {number: max((r for r in residuals if r == r), default=0.0) for number, residuals in numbered}

    def take(self) -> tuple[Mapping[str, Array], Mapping[str, Column]]:
        """Return what was sealed, and forget all."""
        sealed, self._sealed, self._steps, self._sealed_steps = self._sealed, ({}, {}), [], []
        return sealed

    def _columns(self) -> Mapping[str, Array]:
        columns: dict[str, Column] = {}
        steps = self._steps[: self._last - self._first]
        for layer in self._layers:
            numbered = enumerate(steps, start=self._first)
            passes = [(number, rows) for number, step in numbered for rows in step.rows.get(layer, ())]
            if passes:
                columns |= slot_columns(layer, passes, sparse=False) | _key_columns(layer, [rows for _, rows in passes])
        return {name: joined(column) for name, column in columns.items()}

    def check(self) -> None: ...

    def drop(self, layers: Iterable[str]) -> None: ...

    def put(self, merged: Mapping[str, Rows]) -> None: ...

    def note(self, text: str) -> None: ...

    def wait(self) -> None: ...

    def close(self, state: Mapping[str, Column], ended: str) -> None: ...

    def abandon(self) -> None: ...
