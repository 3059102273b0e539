"""Carry out a recording: what happens before and after each step of an optimiser, and what becomes of the step.

Before it, its hyper-parameters are read and its gradients looked at. After it, they are put together with what went
through the layers, as evidence. That is audited and goes to the writer: the first steps one by one, since what is wrong
with a loop is mostly so from the start, later ones a few at a time.

    hooks -> captures -> step evidence -> audited step -> chapter
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dualform.errors import NotFinite, ParameterChanged, RecordingError, StorageError, UnexplainedGradient, listing
from dualform.kinds.hook import ModuleHook
from dualform.recorder.account import Account
from dualform.recorder.audit import AuditedStep, audit, unexplained
from dualform.recorder.begin import Start, StepSink, begin_run
from dualform.recorder.captures import Arena, Captures, UnstoredPass
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
from dualform.recorder.exchange import exchange, own_part
from dualform.recorder.layers import SEED, RecordedLayer
from dualform.recorder.merge import Merger, tagged_keys
from dualform.recorder.plan import RecordedOptimizer, RecordingPlan
from dualform.recorder.provenance.follow import Provenance
from dualform.recorder.records import as_record, check_tags, used_passes
from dualform.recorder.resume import resume_run
from dualform.recorder.snapshot import State, as_column, left_out
from dualform.recorder.world import ALONE, World
from dualform.store import Column
from dualform.store.chapter import Witness
from dualform.store.coverage import Coverage, coverage


class Handle(Protocol):
    """Takes something off the model or the optimiser again."""

    def remove(self) -> None: ...


class BeforeStep(NamedTuple):
    """What was read just before an optimiser's step."""

    lines: Mapping[str, Sequence[float]]  # the optimiser's columns, of each of its parameters
    views: Mapping[str, ViewedGradients]  # of its layers; none: they are looked at afterwards
    gradients: Mapping[str, Column | None]  # that are accounted for; none: likewise
    final: bool  # whether nobody but the optimiser itself could change gradients after that


_NOTHING_READ = BeforeStep({}, {}, {}, final=False)


class Session:
    """Hooks on a model and its optimisers, and one writer. `close` takes the hooks off and ends the run."""

    def __init__(self, plan: RecordingPlan, start: Start, drop_unexplained: bool, world: World = ALONE) -> None:
        self._plan, self._drop_unexplained, self._world = plan, drop_unexplained, world
        self._recorded = {layer.name: layer for layer in plan.layers}  # but for those that were dropped
        self._tag_kinds: Mapping[str, str] | None = None  # set by the first batch
        self._snapshots = plan.snapshots()
        self._before_load: State | None = None  # the state after the last step, if other weights were loaded since
        self.notes: list[str] = []
        self._told_of_drops = False
        self.failure: BaseException | None = None
        self.closed = False
        self._steps_taken = self._steps_audited = start.resume or 0
        self._before = _NOTHING_READ
        self.witness: Witness | None = None  # of the step that is coming
        self._stepping = False
        self._pending = PendingSteps(wait=plan.storage.values, agreed=world.size > 1)
        merge = plan.storage.merge
        self._merger = Merger(plan.manifest.layers, merge, plan.storage.dtype) if merge else None
        self._arena = Arena()
        self.provenance = Provenance(plan.layers, self.note, plan.provenance)
        self._fingerprint = self._row_to_check()[1].clone()
        self._captures = Captures(plan.layers, plan.storage, self._arena, self.provenance, self._on_drop)
        self._handles: list[Handle] = []
        self._before_hooks: dict[int, RemovableHandle] = {}  # by the number of the optimiser
        try:
            self.provenance.add_hooks(plan.model)
            for stepped in plan.optimizers:
                self._add_step_hooks(stepped)
            if world.size > 1 and world.wrapper is not None:
                self._follow_joins(world.wrapper)
            loading = ModuleHook(self._before_loading)
            self._handles.append(plan.model.register_load_state_dict_pre_hook(loading))
            # Last, so that whatever fails leaves no run that was begun for nothing, and an old one as it was.
            self.writer, self._account = self._begin(start)
            if self.writer.dropped:
                self._leave_out(self.writer.dropped)
            if unheld := left_out(plan.model):
                self.note(f"left out of snapshots, being sparse or of a type that they cannot hold: {listing(unheld)}")
        except BaseException:
            self._remove_hooks()
            raise

    def _add_step_hooks(self, stepped: RecordedOptimizer) -> None:
        before = stepped.optimizer.register_step_pre_hook(partial(self._before_step, stepped))
        self._before_hooks[stepped.number] = before
        self._handles.append(before)  # at once, for the next may be refused
        self._handles.append(stepped.optimizer.register_step_post_hook(partial(self._after_step, stepped)))

    def _follow_joins(self, wrapper: Any) -> None:
        from dualform.recorder.joining import follow_joins  # some builds of torch have no torch.distributed

        self._handles.append(follow_joins(wrapper, self._world.rank, self._audit_together, self._after_join))

    def _begin(self, start: Start) -> tuple[StepSink, Account]:
        """Begin the run, or go on with it; return its writer, and what accounts for the rest of the model."""
        if start.sink is not None:
            return start.sink, Account(self._plan.model, (), frozenset())
        plan, state, world = self._plan, self._snapshots.whole(), self._world
        length = chapter_bytes(self._snapshots.trained(state))
        others = plan.manifest.others if plan.storage.values else ()
        if start.resume is None:
            writer = begin_run(start.where, plan.manifest, state, length, start.overwrite, world)
            return writer, Account(plan.model, others, None)
        resumed = resume_run(start.where, start.resume, plan.manifest, state, length, world)
        self._tag_kinds = resumed.tag_kinds
        self._snapshots.resume(resumed.buffers)
        return resumed.writer, Account(plan.model, others, resumed.accounted)

    @property
    def coverage(self) -> Coverage:
        """What is covered; an estimate until the first step."""
        accounted = self._account.parameters
        if accounted is None:
            return self._plan.coverage
        return coverage(self._plan.manifest, accounted, self.writer.dropped)

    @property
    def steps(self) -> int:
        """How many steps were taken; after one that cannot be kept, how many are."""
        return self._steps_taken

    def stop_error(self) -> RecordingError:
        """Return what to raise when a recording that has failed, or ended, is asked to go on."""
        why = self.failure or "the run has ended"
        error = RecordingError(f"recording stopped at step {self.steps}: {why}")
        error.__cause__ = self.failure
        return error

    def expect(self, layer: str, keys: int, values: int) -> None:
        """Make room for the rows of a layer that are known to come before the next seal."""
        self._captures.expect(layer, keys, values)

    def seal(self) -> None:
        """Audit all steps so far, and hand them over to be written."""
        self._audit_pending(sync=True)

    def sync(self) -> None:
        """Write everything so far to the disk."""
        if not self._is_as_left():
            raise ParameterChanged(
                f"step {self.steps}: the weights are not those that the last step left (averaged weights swapped in, "
                "a checkpoint loaded?); call recorder.sync() before that, or after they are back"
            )
        try:
            self._audit_pending(sync=True)
            self.writer.wait()
        except BaseException as error:
            self.failure = error
            raise

    def close(self, ended_by: type[BaseException] | None) -> None:
        """Take the hooks off, audit what waits, and end the run."""
        self.closed = True
        self._remove_hooks()
        try:
            together = self._world.size == 1 or (ended_by is None and self.failure is None)  # else others may be gone
            if together and not isinstance(self.failure, StorageError):  # else there is nobody to leave them to
                self._audit_pending()
        except BaseException as error:  # an interrupt, too: the run is ended and let go in any case
            self.failure = error
            self._end(ended_by or type(error))
            raise
        self._end(ended_by)

    def _remove_hooks(self) -> None:
        self._captures.close()
        self.provenance.close()
        for handle in self._handles:
            handle.remove()

    def _end(self, ended_by: type[BaseException] | None) -> None:
        if isinstance(self.failure, StorageError):
            self.writer.abandon()  # the disk said no once; what was sealed stays readable
            return
        # Weights that moved on without being recorded are not the state after the last recorded step.
        lost = self._steps_taken - self._steps_audited  # which not all processes have explained
        if lost:
            self.note(
                f"the last {lost} steps were not explained by all processes when this one ended, and are not kept"
            )
            self._steps_taken = self._steps_audited
        torn = self._stepping or self.failure is not None or lost > 0
        self.writer.put(self._merger.take() if self._merger else {})
        state = {} if torn or self._world.rank else self._last_state()
        self.writer.close(state, "complete" if ended_by is None else ended_by.__name__)

    def _last_state(self) -> State:
        """Return the state after the last recorded step; nothing, and a note, if that is not to be had any more."""
        if self._before_load is not None:
            if not self._is_as_left():
                self.note(f"other weights were loaded after step {self.steps}, the last one; the run ends before that")
            return self._before_load
        if not self._is_as_left():
            self.note(
                f"weights were changed after step {self.steps}, the last one, and before recording ended (averaged "
                "weights swapped in, clamped?), so the last steps are not followed by a snapshot: end it before that"
            )
            return {}
        if not self.steps and self._captures.passes:
            self.note(
                f"{self._captures.passes:,} backward passes and no step of the optimiser that was passed: was another "
                "one stepped (a trainer may make its own), or were weights updated by hand?"
            )
        return self._snapshots.changed()

    def _on_drop(self, layers: Sequence[str], passes: int) -> None:
        """Say, once, that backward passes have waited in vain."""
        if not self._told_of_drops:
            self._told_of_drops = True
            text = (
                f"{passes:,} backward passes through {listing(layers, most=5)} were not followed by a step of their "
                "optimiser, and are dropped: is another one stepped than was passed to dualform.record (a trainer may "
                "make its own), or are weights updated by hand? Nothing of these passes is recorded"
            )
            self.note(text)
            warnings.warn(text, stacklevel=2)

    def note(self, text: str) -> None:
        """Keep what a reader of the run should know, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.writer.note(text)

    # Around each step. An error stops the recording for good: later steps must not be recorded as if nothing was.

    def _before_step(
        self, stepped: RecordedOptimizer, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        if self.failure is not None:
            raise self.stop_error()
        if self.provenance.experimenting:
            raise RecordingError("the model takes steps in its own forward pass")
        try:
            if self._account.parameters is None:
                self._account.choose(self._captures.nbytes)
            name, row = self._row_to_check()
            # NaN never is equal; infinite weights make gradients that are refused
            if not torch.equal(self._fingerprint, row):
                raise _change_error(name, row, self._steps_taken)
            self.provenance.before_step()
            lines = read_lines(stepped) | self._account.lines(stepped)
            self._before = BeforeStep(lines, {}, {}, final=self._comes_last(stepped))
            # A fused step may unscale gradients first, and is looked at afterwards.
            fused = any(group.get("fused") for group in optimizer.param_groups)
            closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)  # the optimiser is the first one
            if not fused and closure is None:
                self._look(stepped)
        except BaseException as error:
            self.failure = error
            raise
        self._stepping = closure is None  # else weights stay as they are while the closure is called first
        return None if closure is None else ((args[0],), {"closure": partial(self._call, closure, stepped, not fused)})

    def _call(self, closure: Callable[[], Any], stepped: RecordedOptimizer, look: bool) -> Any:
        """Call a closure, which makes the gradients of the step, and look at them before the optimiser does."""
        loss = closure()
        self._stepping = True
        if look:
            self._before = self._before._replace(final=True)
            self._look(stepped)
        return loss

    def _comes_last(self, stepped: RecordedOptimizer) -> bool:
        """Return whether the recorder's hook is the last one before an optimiser's step."""
        return self._before_hooks[stepped.number].id == [*stepped.optimizer._optimizer_step_pre_hooks][-1]

    def _look(self, stepped: RecordedOptimizer) -> None:
        """Look at the gradients that an optimiser is about to step with, and may change while it does."""
        recorded = (layer for layer in stepped.layers if layer.name in self._recorded and layer.description.stored)
        views = {layer.name: view_gradients(layer) for layer in recorded}
        self._before = self._before._replace(views=views, gradients=self._account.gradients(stepped))

    def _after_step(self, stepped: RecordedOptimizer, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self.writer.check()
            layers, idle = [], set()
            unstored: dict[str, Mapping[int, UnstoredPass]] = {}
            with_gradients: list[tuple[RecordedLayer, Iterable[int]]] = []
            for layer in (layer for layer in stepped.layers if layer.name in self._recorded):
                if not layer.description.stored:
                    unstored[layer.name] = self._captures.take_unstored(layer.name)
                    with_uses = zip(layer.description.trained, trained_parameters(layer), strict=True)
                    idle |= {use.parameter.name for use, parameter in with_uses if parameter.grad is None}
                    with_gradients.append((layer, range(len(layer.description.trained))))
                    continue
                seen = self._before.views.get(layer.name)
                if seen is None or not self._before.final:
                    seen = view_gradients(layer, seen)
                view = seen.view
                passes = self._captures.take(layer.name)
                if view.stepped:
                    layers.append(LayerEvidence(layer, view, passes))
                    with_gradients.append((layer, view.stepped))
                idle |= {use.parameter.name for i, use in enumerate(layer.description.trained) if i not in view.stepped}
            gradients = self._before.gradients or self._account.gradients(stepped)
            hooks, own = optimizer._optimizer_step_pre_hooks, self._before_hooks[stepped.number].id
            hooks[own] = hooks.pop(own)  # last again: a hook that was added since may change gradients
            accounts = self._account.take(gradients)._replace(remainders=self._remainders(stepped, with_gradients))
            idle |= {name for name, gradient in gradients.items() if gradient is None}
            lines = {name: (float(name not in idle), *line) for name, line in self._before.lines.items()}
            due = self._pending.add(StepEvidence(lines, layers, accounts, unstored, self.witness))
            self._steps_taken += 1
            self._before, self._before_load = _NOTHING_READ, None
            self.provenance.after_step()
            self._fingerprint = self._row_to_check()[1].clone()
            if due:
                self._audit_pending()
        except BaseException as error:
            self.failure = error
            raise
        self._stepping = False

    def _remainders(
        self, stepped: RecordedOptimizer, layers: Iterable[tuple[RecordedLayer, Iterable[int]]]
    ) -> dict[str, Column]:
        """Return what the optimiser's own rounding has added to each parameter that it has just stepped.

        Args:
            stepped: The optimiser.
            layers: Its layers, and which of their trained uses are looked at.
        """
        if stepped.rule is None or stepped.rule.remainder is None:
            return {}
        dtype = torch.float64 if self._plan.storage.dtype == "float64" else torch.float16
        remainders = {}
        for layer, uses in layers:
            parameters = trained_parameters(layer)
            for i in uses:
                name, parameter = layer.description.trained[i].parameter.name, parameters[i]
                if name not in remainders and parameter.grad is not None:
                    line = dict(zip(stepped.rule.columns, self._before.lines[name], strict=True))
                    state = stepped.optimizer.state[parameter]
                    with torch.no_grad():
                        remainders[name] = as_column(stepped.rule.remainder(line, parameter.grad, state).to(dtype))
        return remainders

    def _is_as_left(self) -> bool:
        """Return whether weights still are what the last step left, as far as a row of one of them tells."""
        return not self.steps or torch.equal(self._fingerprint, self._row_to_check()[1])

    def _before_loading(self, *_: Any) -> None:
        """Keep the state after the last step: what is loaded now, such as the best weights, is no part of the run."""
        if self.steps and not self._stepping and self._before_load is None and self._is_as_left():
            self._before_load = self._snapshots.changed()

    def _after_join(self) -> None:
        """Take the weights as they are: a process that had run out of batches has those of the others now."""
        self._fingerprint = self._row_to_check()[1].clone()

    def _row_to_check(self) -> tuple[str, Tensor]:
        """Return a weight's name and a row of it: another weight and another row in each step.

        Whatever changes weights as a whole shows here within a few steps; a change of single rows shows
        here sooner or later, and in the certificate of its chapter in any case.
        """
        layer = [*self._recorded.values()][self._steps_taken % len(self._recorded)]
        weight = trained_parameters(layer)[0].detach()
        return layer.description.trained[0].parameter.name, weight[(SEED + 31 * self._steps_taken) % weight.shape[0]]

    # What becomes of steps

    def _audit_pending(self, *, sync: bool = False) -> None:
        """Audit the steps that wait, leave them to the writer, and seal them if it is time to, or asked for."""
        if self._world.size > 1:
            self._audit_together(sync=sync)
            return
        self._audit_steps(self._pending.take())
        if sync or (self.writer.full and self._plan.manifest.recipe is None):  # a recipe says itself when
            self._seal()

    def _audit_together(self, *, sync: bool = False, idle: bool = False, over: bool = False) -> bool:
        """Audit the steps that wait in all processes of the training; return whether all have run out of batches."""
        world, own = self._world, self._pending.take()
        steps, over = exchange(world, self._recorded, own, self._steps_audited, idle, over)
        self._audit_steps(steps)
        agreed = world.gather((sync, self.writer.full, self._pending.wish))
        self._pending.agree(min(wish for _, _, wish in agreed))
        if any(sync or full for sync, full, _ in agreed):
            self._seal()
        if any(sync for sync, _, _ in agreed):
            world.all(self.writer.wait)
        return over

    def _audit_steps(self, steps: Sequence[StepEvidence]) -> None:
        """Audit steps, and leave them to the writer."""
        merge, world = self._plan.storage.merge, self._world
        try:
            for step in audit(steps, self._steps_audited, world):
                if step.failed:
                    self._drop(step)
                step = own_part(step, world) if world.size > 1 else step
                passes = used_passes(step)
                self._tag_kinds = check_tags(passes, self._tag_kinds, merge, step.number)
                keys = tagged_keys(passes, merge) if merge else []
                record = as_record(self._plan, step, () if merge else passes, world.rank)
                self.writer.append(record, self._tag_kinds or {})
                if self._merger:
                    self._merger.add(keys)
                self._steps_audited += 1
        finally:
            self._steps_taken = self._steps_audited  # should one of them not be explained, the steps end there

    def _drop(self, step: AuditedStep) -> None:
        """Record a step, and all that follow, without the layers that failed; raise unless that is wanted."""
        reason = unexplained(step)
        if not self._drop_unexplained or len(step.failed) == len(self._recorded):
            raise UnexplainedGradient(
                f'{reason} Leave layers out with exclude=..., or as soon as they fail with on_unexplained="drop"; or '
                "change the loop. The steps before it are kept"
            )
        warnings.warn(f"dualform goes on without layer {listing(step.failed)}: {reason}", stacklevel=2)
        self.writer.drop(step.failed)
        self._leave_out(step.failed)

    def _leave_out(self, layers: Collection[str]) -> None:
        """Take the hooks off layers that are not recorded any more."""
        for layer in layers:
            self._captures.drop(layer)
            del self._recorded[layer]
        self.provenance.drop(layers)
        self._fingerprint = self._row_to_check()[1].clone()  # of one that is left

    def _seal(self) -> None:
        self.writer.put(self._merger.take() if self._merger else {})
        give_back = self._arena.hand_over()
        # Passes that wait for another optimiser's step still lie in these blocks.
        done = (lambda: None) if self._captures.waiting else give_back
        self.writer.seal({} if self._world.rank else self._snapshots.changed(), done=done)
        self._snapshots.handed_over()


def _change_error(name: str, row: Tensor, step: int) -> RecordingError:
    """Return what to raise for a weight that is not what the last step left."""
    if not torch.isfinite(row).all():
        return NotFinite(
            f"step {step}: {name!r} has become NaN or infinite; lower the learning rate or look at the "
            "optimiser's options. The steps before it are kept"
        )
    return ParameterChanged(
        f"step {step}: {name!r} was changed between two optimiser steps (by assignment, "
        "clamping, averaging, load_state_dict?). Leave its layer out with exclude=..., or make the "
        "change outside of recording. The steps before it are kept"
    )
