"""Train by a recipe and record it, from the beginning or from where a run was left.

Where slots are not stored, nothing is kept of a step but its ledger lines, its loss and whose its rows are: the slots
are made again from the snapshot before them (replay.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from dualform.errors import RecipeError, RunError, RunExists, UnknownName
from dualform.recipe.beginning import check_beginning, compare_first_steps
from dualform.recipe.recipe import Recipe, StepBatch
from dualform.recipe.repeatable import repeatable
from dualform.recipe.training import Training
from dualform.recorder.arguments import as_place
from dualform.recorder.begin import Start
from dualform.recorder.layers import Names, fitting
from dualform.recorder.plan import RecordingPlan, make_plan, registered_rule
from dualform.recorder.session import Session
from dualform.recorder.tags import Tags
from dualform.store import Backend, Run, Storage
from dualform.store.chapter import Witness
from dualform.store.schema import MAX_THREADS, PRECISIONS, Repetition

SLOTS, SNAPSHOTS = "slots", "snapshots"
# Where slots are not stored, a snapshot is a small part of the bytes that they would take,
_SLOTS_PER_SNAPSHOT = 64
_MAX_CHAPTERS = 10  # there are not many of them,
_MAX_SECONDS = 600.0  # and not more of a training is lost in a crash


@dataclass(frozen=True)
class Options:
    """How a training is recorded; `Recipe.train` says what each is."""

    keep: str | Mapping[str, str] = SLOTS
    every: int | None = None
    overwrite: bool = False
    layers: Names = "*"
    exclude: Names = ()
    dtype: str | None = None
    values: bool = True
    merge: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    provenance: bool = True
    threads: int | None = None  # None: as many as there are, or as a run that is gone on with has had
    progress: Callable[[int], None] = lambda step: None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the options of a call; an unknown one raises and lists the known."""
        known = [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                raise UnknownName("option of Recipe.train", name, known)
        return cls(**options)

    def __post_init__(self) -> None:
        for name, most in (("every", None), ("threads", MAX_THREADS)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and not (whole and (most is None or value <= most)):
                limits = "at least 1" if most is None else f"between 1 and {most:,}"
                raise RecipeError(f"{name} must be a whole number, {limits}, not {value!r}")
        if self.dtype not in (None, *PRECISIONS):
            raise RecipeError(f"dtype must be one of {', '.join(PRECISIONS)}, not {self.dtype!r}")
        if not callable(self.progress):
            raise RecipeError(f"progress must be a function of the number of a finished step, not {self.progress!r}")
        for kept in self._kept.values():
            if kept not in (SLOTS, SNAPSHOTS):
                raise RecipeError(f'keep must be "slots" or "snapshots", or say which for patterns of layers: {kept!r}')
        if self.keep != SLOTS and (self.merge is not None or not self.values):
            what = "values=False" if self.merge is None else f"merge={self.merge!r}"
            raise RecipeError(
                f'{what} saves bytes of slots that are stored: pass keep="slots". With snapshots slots take none: all '
                "of them are made again"
            )

    @property
    def _kept(self) -> Mapping[str, Any]:
        """What is kept of layers, by pattern."""
        return self.keep if isinstance(self.keep, Mapping) else {"*": self.keep}

    def stored(self, layers: Sequence[str]) -> list[str]:
        """Return the layers whose slots are stored: the first pattern that fits a layer counts, and else they are."""
        left, stored = [*layers], []
        for pattern, kept in self._kept.items():
            (names,) = fitting(pattern, layers).values()
            if not names.intersection(left):
                raise RecipeError(f"keep: patterns before {pattern!r} have said what is kept of all layers it fits")
            stored += [name for name in left if name in names and kept == SLOTS]
            left = [name for name in left if name not in names]
        return stored + left

    def storage(self, optimizers: Sequence[Optimizer]) -> Storage:
        """Return how slots are stored, in which precision unless that was chosen."""
        values = self.values and self.merge is None
        magnified = values and any(registered_rule(optimizer).magnifies_rounding for optimizer in optimizers)
        return Storage(self.dtype or ("float32" if magnified else "float16"), values, self.merge)


class RecordedTraining:
    """A training whose steps a session follows."""

    def __init__(self, training: Training, session: Session, seals: "Seals | None" = None) -> None:
        self.training, self.session, self._seals = training, session, seals

    @property
    def model(self) -> nn.Module:
        return self.training.model

    @property
    def step(self) -> int:
        """How many steps of the recipe were taken."""
        return self.training.step

    def take_step(self) -> Witness:
        """Take one step of the recipe."""
        witness = self.training.take_step(self)
        if self._seals is not None:
            self._seals.after(self.step)
        return witness

    def before_pass(self, batch: StepBatch) -> None:
        """Tag the rows that are coming; of slots that are made again, tags are stored."""
        if self._seals is not None:
            self.session.provenance.tag(Tags(batch.tags))

    def before_step(self, witness: Witness) -> None:
        """Tell what the step is to be compared with when it is taken again."""
        self.session.witness = witness


def plan_of(training: Training, options: Options, threads: int) -> RecordingPlan:
    """Plan how a training is recorded."""
    recipe, optimizers, storage = training.recipe, training.optimizers, options.storage(training.optimizers)
    plan = make_plan(
        training.model, optimizers, options.layers, options.exclude, storage, options.about, options.provenance
    )
    stored = options.stored([layer.name for layer in plan.layers])
    return plan.of_recipe(Repetition(recipe.seed, threads, len(optimizers)), stored, training.carried)


def train(recipe: Recipe, path: str | Path | Backend, steps: int, options: Options) -> nn.Module:
    """Train up to a number of steps, and record it."""
    with recorded(recipe, path, steps, options) as training:
        while training.step < steps:
            training.take_step()
            options.progress(training.step - 1)
    return training.model.eval()


@contextmanager
def recorded(recipe: Recipe, path: str | Path | Backend, steps: int, options: Options) -> Iterator[RecordedTraining]:
    """Begin a training that is recorded, or go on with it: whoever takes its steps ends it by leaving the block."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise RecipeError(f"steps must be a whole number, at least 1, not {steps!r}")
    where = as_place(path)
    run = None if options.overwrite else _unfinished(where, steps, recipe)
    with repeatable(run.manifest.recipe.threads if run and run.manifest.recipe else options.threads) as threads:
        training = Training(recipe)
        plan = plan_of(training, options, threads)
        start = Start(where, options.overwrite)
        if run is not None:
            check_beginning(run, training)
            compare_first_steps(run, training)
            last = max(step for step in run.sealed if step % len(training.optimizers) == 0)
            training.restore(run.sealed[last])
            start = Start(where, resume=last)
        session, ended = Session(plan, start, drop_unexplained=False), None
        try:
            yield RecordedTraining(training, session, Seals(session, plan, steps, options))
        except BaseException as error:
            ended = type(error)
            training.settle(session.steps)
            raise
        finally:
            session.close(ended)


class Seals:
    """Decides after which steps a snapshot is taken: whole steps of the recipe only."""

    def __init__(self, session: Session, plan: RecordingPlan, steps: int, options: Options) -> None:
        self._session, self._steps, self._every = session, steps, options.every
        self._since, self._at = monotonic(), session.steps
        self._per_step = len(plan.optimizers)
        self._whole = all(layer.description.stored for layer in plan.layers)

    def after(self, step: int) -> None:
        """Seal, if it is time to."""
        session = self._session
        if self._is_due(step):
            session.seal()
            self._since, self._at = monotonic(), session.steps

    def _is_due(self, step: int) -> bool:
        session = self._session
        if self._every is not None:
            return step % self._every == 0
        if self._whole:
            return session.writer.full
        if monotonic() - self._since >= _MAX_SECONDS:
            return True
        long = (session.steps - self._at) // self._per_step >= ceil(self._steps / _MAX_CHAPTERS)
        return long and session.writer.nbytes >= _SLOTS_PER_SNAPSHOT * session.writer.snapshot_nbytes


def _unfinished(where: Path | Backend, steps: int, recipe: Recipe) -> Run | None:
    """Return the run that is to be gone on with; None: there is none. Raises for one that is finished, or not ours."""
    try:
        run = Run(where)
    except RunError:
        return None  # nothing is there, or what the writer will say more about
    repetition = run.manifest.recipe
    if not run.steps:
        return None
    if repetition is None:
        raise RunExists(f"{where} holds a run that was not trained by a recipe: choose another directory, or overwrite")
    if repetition.seed != recipe.seed:
        raise RunExists(
            f"{where} holds a run with seed {repetition.seed}, and the recipe has {recipe.seed}: choose another "
            "directory, or pass overwrite=True to replace it"
        )
    done = run.steps // repetition.optimizers
    if done >= steps:
        raise RunExists(
            f"{where} already holds a run of {done:,} steps; choose another directory, ask for more steps, or pass "
            "overwrite=True to replace it"
        )
    return run
