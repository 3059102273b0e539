"""Carry out a recording: what happens before and after each step of an optimiser, and what becomes of the step.

Before it, its hyper-parameters are read and its gradients looked at. After it, they are put together with what went
through the layers, as evidence. That is audited and goes to the writer: the first steps one by one, since what is wrong
with a loop is mostly so from the start, later ones a few at a time.

    hooks -> captures -> step evidence -> audited step -> chapter
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dualform.errors import NotFinite, ParameterChanged, RecordingError, StorageError
from dualform.recorder.audit import audit
from dualform.recorder.captures import Arena, Captures
from dualform.recorder.estimate import chapter_bytes
from dualform.recorder.evidence import (
    LayerEvidence,
    PendingSteps,
    StepEvidence,
    ViewedGradients,
    read_lines,
    trained_parameters,
    view_gradients,
)
from dualform.recorder.layers import SEED
from dualform.recorder.merge import Merger, tagged_keys
from dualform.recorder.plan import RecordedOptimizer, RecordingPlan
from dualform.recorder.provenance import Provenance
from dualform.recorder.records import as_record, check_tags, used_passes
from dualform.recorder.resume import resume_run
from dualform.store import RunWriter, Where


class BeforeStep(NamedTuple):
    """What was read just before an optimiser's step."""

    lines: Mapping[str, Sequence[float]]  # the optimiser's columns, of each of its parameters
    views: Sequence[ViewedGradients]  # of its layers; none: they are looked at afterwards


_NOTHING_READ = BeforeStep({}, ())


class Session:
    """Hooks on a model and its optimisers, and one writer. `close` takes the hooks off and ends the run."""

    def __init__(self, plan: RecordingPlan, where: Where, overwrite: bool, resume: int | None) -> None:
        self._plan = plan
        self._tag_kinds: Mapping[str, str] | None = None  # set by the first batch
        state = plan.state()
        if resume is None:
            self.writer = RunWriter.begin(where, plan.manifest, state, chapter_bytes(state), overwrite)
        else:
            self.writer, self._tag_kinds = resume_run(where, resume, plan.manifest, state, chapter_bytes(state))
        self.notes: list[str] = []  # what the user should know, and nothing fails for
        self.failure: BaseException | None = None
        self._steps_taken = self._steps_audited = resume or 0
        self._before = _NOTHING_READ
        self._stepping = False
        self._pending = PendingSteps(wait=plan.storage.values)
        merge = plan.storage.merge
        self._merger = Merger(plan.manifest.layers, merge, plan.storage.dtype) if merge else None
        self._arena = Arena()
        self.provenance = Provenance(plan.layers, self.notes, plan.provenance)
        self._captures = Captures(plan.layers, plan.storage, self._arena, self.provenance)
        self.provenance.add_hooks(plan.model)
        self._handles: list[RemovableHandle] = []
        for stepped in plan.optimizers:
            self._handles.append(stepped.optimizer.register_step_pre_hook(partial(self._before_step, stepped)))
            self._handles.append(stepped.optimizer.register_step_post_hook(partial(self._after_step, stepped)))
        self._fingerprint = self._row_to_check()[1].clone()

    @property
    def steps(self) -> int:
        """How many steps were taken; after one that cannot be kept, how many are."""
        return self._steps_taken

    def stop_error(self) -> RecordingError:
        """Return what to raise when a recording that has failed is asked to go on."""
        error = RecordingError(f"recording stopped at step {self.steps}: {self.failure}")
        error.__cause__ = self.failure
        return error

    def sync(self) -> None:
        """Write everything so far to the disk."""
        try:
            self._audit_pending()
            self._seal()
            self.writer.wait()
        except BaseException as error:
            self.failure = error
            raise

    def close(self, ended_by: type[BaseException] | None) -> None:
        """Take the hooks off, audit what waits, and end the run."""
        self._captures.close()
        self.provenance.close()
        for handle in self._handles:
            handle.remove()
        try:
            if not isinstance(self.failure, StorageError):  # else there is nobody to leave them to
                self._audit_pending()
        except BaseException as error:  # an interrupt, too: the run is ended and let go in any case
            self.failure = error
            self._end(ended_by or type(error))
            raise
        self._end(ended_by)

    def _end(self, ended_by: type[BaseException] | None) -> None:
        if isinstance(self.failure, StorageError):
            self.writer.abandon()  # the disk said no once; what was sealed stays readable
            return
        # Weights that moved on without being recorded are not the state after the last recorded step.
        torn = self._stepping or self.failure is not None
        self.writer.put(self._merger.take() if self._merger else {})
        self.writer.close({} if torn else self._plan.state(), "complete" if ended_by is None else ended_by.__name__)

    # Around each step. An error stops the recording for good: later steps must not be recorded as if nothing was.

    def _before_step(self, stepped: RecordedOptimizer, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.failure is not None:
            raise self.stop_error()
        try:
            name, row = self._row_to_check()
            # NaN never is equal; infinite weights make gradients that are refused
            if not torch.equal(self._fingerprint, row):
                raise _change_error(name, row, self._steps_taken)
            self.provenance.before_step()
            fused = any(group.get("fused") for group in optimizer.param_groups)
            views = () if fused else [view_gradients(layer, self._steps_taken) for layer in stepped.layers]
        except BaseException as error:
            self.failure = error
            raise
        self._before = BeforeStep(read_lines(stepped), views)
        self._stepping = True

    def _after_step(self, stepped: RecordedOptimizer, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self.writer.check()
            layers, idle = [], set()
            for layer, before in zip_longest(stepped.layers, self._before.views):
                view = view_gradients(layer, self._steps_taken, before).view
                passes = self._captures.take(layer.name)
                if view.stepped:
                    layers.append(LayerEvidence(layer, view, passes))
                idle |= {use.parameter.name for i, use in enumerate(layer.description.trained) if i not in view.stepped}
            lines = {name: (float(name not in idle), *line) for name, line in self._before.lines.items()}
            due = self._pending.add(StepEvidence(lines, layers))
            self._steps_taken += 1
            self._before = _NOTHING_READ
            self.provenance.after_step()
            self._fingerprint = self._row_to_check()[1].clone()
            if due:
                self._audit_pending()
        except BaseException as error:
            self.failure = error
            raise
        self._stepping = False

    def _row_to_check(self) -> tuple[str, Tensor]:
        """Return a weight's name and a row of it: another weight and another row in each step.

        Whatever changes weights as a whole shows here within a few steps; a change of single rows shows
        here sooner or later, and in the certificate of its chapter in any case.
        """
        layer = self._plan.layers[self._steps_taken % len(self._plan.layers)]
        weight = trained_parameters(layer)[0].detach()
        return layer.description.trained[0].parameter.name, weight[(SEED + 31 * self._steps_taken) % weight.shape[0]]

    # What becomes of steps

    def _audit_pending(self) -> None:
        """Audit the steps that wait, and leave them to the writer."""
        merge = self._plan.storage.merge
        try:
            for step in audit(self._pending.take(), self._steps_audited):
                passes = used_passes(step)
                self._tag_kinds = check_tags(passes, self._tag_kinds, merge, step.number)
                keys = tagged_keys(passes, merge) if merge else []
                self.writer.append(as_record(self._plan, step, () if merge else passes), self._tag_kinds or {})
                if self._merger:
                    self._merger.add(keys)
                self._steps_audited += 1
        finally:
            self._steps_taken = self._steps_audited  # should one of them not be explained, the steps end there
        if self.writer.full:
            self._seal()

    def _seal(self) -> None:
        self.writer.put(self._merger.take() if self._merger else {})
        give_back = self._arena.hand_over()
        # Passes that wait for another optimiser's step still lie in these blocks.
        done = (lambda: None) if self._captures.waiting else give_back
        self.writer.seal(self._plan.state(), done=done)


def _change_error(name: str, row: Tensor, step: int) -> RecordingError:
    """Return what to raise for a weight that is not what the last step left."""
    if not torch.isfinite(row).all():
        return NotFinite(
            f"step {step}: {name!r} has become NaN or infinite; lower the learning rate or look at the "
            "optimiser's options. The steps before it are kept"
        )
    return ParameterChanged(
        f"step {step}: {name!r} was changed between two optimiser steps (by assignment, "
        "clamping, averaging, load_state_dict?). Leave its layer out with layers=..., or make the "
        "change outside of recording. The steps before it are kept"
    )
