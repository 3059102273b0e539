"""The recorder: a `with` block around a training loop, nothing of which stays on the model.

    with dualform.record(model, optimizer, "runs/mnist") as recorder:
        for images, labels in loader:
            recorder.tag(label=labels)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()

A step is one call of an optimiser's `step`. Before it, its hyper-parameters are read and its gradients looked at. They
are then audited against what went through the layers, and the slots go to the writer: the first steps one by one, since
what is wrong with a loop is mostly so from the start, later ones a few at a time.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dualform.errors import DualformError, NotFinite, ParameterChanged, RecordingError, StorageError
from dualform.kinds import Probe
from dualform.recorder import ledger
from dualform.recorder.arena import Arena
from dualform.recorder.audit import explain
from dualform.recorder.capture import Captures, Pack, Packed, Pass, as_rows
from dualform.recorder.estimate import Estimate, chapter_bytes, estimate
from dualform.recorder.layers import Recorded, plan
from dualform.recorder.look import Explained, Look
from dualform.recorder.merge import Merger
from dualform.recorder.resume import go_on
from dualform.recorder.sight import Sight, see
from dualform.recorder.snapshot import snapshot
from dualform.recorder.tags import Tags, check_same
from dualform.recorder.taken import Taken, Waiting
from dualform.store import Manifest, Rows, RunWriter, StepRecord, Storage
from dualform.store.document import parsed
from dualform.store.packing import TORCH, pack
from dualform.store.schema import PRECISIONS

_NO_TAGS = Tags({})
_SEED = 20220211  # any number will do, as long as it stays the same


class Recorder:
    """Made by `dualform.record`; see there."""

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], path: Path, layers: str | Iterable[str],
        storage: Storage, overwrite: bool, resume: int | None, about: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.path = path
        self.steps = resume or 0
        self._model, self._optimizers, self._storage = model, optimizers, storage
        self._overwrite, self._resume = overwrite, resume
        chosen = plan(model, optimizers, layers, storage)
        self.skipped = chosen.skipped
        self._recorded = chosen.recorded
        self._rules = [ledger.rule_for(optimizer) if storage.values else None for optimizer in optimizers]
        self._manifest = Manifest(
            run=token_hex(8),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            software=f"torch {torch.__version__}, python {sys.version.split()[0]}",
            storage=storage,
            optimizers=tuple(ledger.describe(optimizer, storage.values) for optimizer in optimizers),
            layers=tuple(entry.layer for entry in chosen.recorded),
            about=dict(about),
        )
        self._merger = Merger(self._manifest.layers, storage.merge, storage.dtype) if storage.merge else None
        self._writer: RunWriter | None = None
        self._failed: BaseException | None = None
        # Random numbers of its own: recording must not change the user's. The same for every run: one that
        # was interrupted must measure what an uninterrupted one would.
        generator = torch.Generator().manual_seed(_SEED)
        self._probes = [Probe(entry.kind, entry.layer, generator) for entry in chosen.recorded]
        every = list(zip(self._recorded, self._probes, strict=True))
        self._layers_of = [
            [one for one in every if one[0].layer.trained[0].parameter.optimizer == index]
            for index in range(len(optimizers))
        ]
        self._unseen = dict.fromkeys(self.layers, float("nan"))  # residuals, of layers that are not stepped
        self._idle = {  # the ledger lines of parameters that another optimiser steps
            parameter.name: [0.0] * (1 + len(self._manifest.optimizers[parameter.optimizer].columns))
            for parameter in self._manifest.parameters
            if parameter.optimizer is not None
        }

    # The user's side

    @property
    def layers(self) -> list[str]:
        """Names of the layers that are recorded."""
        return [entry.layer.name for entry in self._recorded]

    def tag(self, **columns: Any) -> None:
        """Say what the rows of the coming forward passes are: `recorder.tag(id=ids, label=labels, task="a")`.

        Scalars and strings hold for every row; arrays have one entry a row, in the shape of the batch.
        Tags hold until the next `tag` or step. Every batch needs the same ones.
        """
        self._check_running()
        self._tags = Tags(columns)

    def estimate(self, steps: int, batch: int) -> Estimate:
        """The bytes that `steps` steps of `batch` slots each take, before repeated keys and zeros are left out."""
        return estimate(self._manifest, snapshot(self._model, self._optimizers), steps, batch)

    def sync(self) -> int:
        """Put everything so far on the disk and return the number of steps there; call it at checkpoints."""
        self._check_running()
        assert self._writer is not None
        self._guard(self._settle)
        self._guard(self._seal)
        self._guard(self._writer.wait)
        return self.steps

    def __enter__(self) -> Self:
        if self._writer is not None:
            raise RecordingError("a recorder can be entered once; call dualform.record again")
        if self.skipped:  # before any hook is on: a warning may be an error
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            warnings.warn(f"dualform does not record {reasons}", stacklevel=2)
        self._tags = _NO_TAGS
        self._kinds: dict[str, str] | None = None  # of the tags; set by the first batch
        self._lines: dict[str, list[float]] = {}
        self._sights: Sequence[Sight] = ()
        self._waiting = Waiting(at_once=self._merger is not None or not self._storage.values)
        self._settled = self.steps
        self._stepping = False
        self._arena, self._carved = Arena(), 0
        state = snapshot(self._model, self._optimizers)
        size = chapter_bytes(state)
        if self._resume is None:
            self._writer = RunWriter.begin(self.path, self._manifest, state, size, self._overwrite)
        else:
            self._writer, self._kinds = go_on(self.path, self._resume, self._manifest, state, size)
        self._captures = Captures(self._recorded, self._probes, lambda: self._tags, self._packer)
        self._handles: list[RemovableHandle] = []
        for index, optimizer in enumerate(self._optimizers):
            self._handles.append(optimizer.register_step_pre_hook(self._before_step(index)))
            self._handles.append(optimizer.register_step_post_hook(self._after_step(index)))
        self._print = self._fingerprint()[1].clone()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writer is not None
        self._captures.close()
        for handle in self._handles:
            handle.remove()
        try:
            self._close(kind)
        except DualformError as trouble:
            if error is None:
                raise
            error.add_note(f"dualform could not keep the last steps: {trouble}")

    def _close(self, kind: type[BaseException] | None) -> None:
        try:
            if not isinstance(self._failed, StorageError):  # else there is nobody to leave them to
                self._guard(self._settle)
        except BaseException as trouble:  # an interrupt, too: the run is ended and let go in any case
            self._end(kind or type(trouble))
            raise
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        assert self._writer is not None
        if isinstance(self._failed, StorageError):
            self._writer.abandon()  # the disk said no once; what was sealed stays readable
            return
        # Weights that moved on without being recorded are not the state after the last recorded step.
        torn = self._stepping or self._failed is not None
        self._writer.put(self._merger.take() if self._merger else {})
        state = {} if torn else snapshot(self._model, self._optimizers)
        self._writer.close(state, "complete" if kind is None else kind.__name__)

    # Around each step

    def _before_step(self, index: int) -> Any:
        def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._check_running()
            self._guard(self._check_unchanged)
            self._lines = ledger.read(optimizer, list(self._parameters(index)), self._rules[index])
            self._guard(lambda: self._see(index, optimizer))
            self._stepping = True

        return hook

    def _see(self, index: int, optimizer: Optimizer) -> None:
        """Look at the gradients that an optimiser's step will take."""
        fused = any(group.get("fused") for group in optimizer.param_groups)
        self._sights = [] if fused else [see(*one, self.steps) for one in self._layers_of[index]]

    def _after_step(self, index: int) -> Any:
        def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._guard(lambda: self._take_step(index))
            self._stepping = False

        return hook

    def _guard(self, action: Callable[[], None]) -> None:
        """An error stops the recording for good: later steps must not be recorded as if nothing was."""
        try:
            action()
        except BaseException as error:
            self._failed = error
            raise

    def _take_step(self, index: int) -> None:
        assert self._writer is not None
        self._writer.check()
        carved, self._carved = self._carved, self._arena.carved
        self._waiting.add(Taken(self._lines, self._look(index)), self._carved - carved)
        self.steps += 1
        self._tags = _NO_TAGS
        self._print = self._fingerprint()[1].clone()
        if self._waiting.due:
            self._settle()

    def _look(self, index: int) -> list[Look]:
        """The gradients of an optimiser's layers, and what went through them since its last step."""
        sights, self._sights = self._sights, ()
        looks = []
        for (entry, probe), sight in zip_longest(self._layers_of[index], sights):
            if sight is None or not sight.holds:
                sight = see(entry, probe, self.steps)
            passes = self._captures.take(entry.layer.name)
            if sight.seen.stepped:
                looks.append(Look(probe, sight.seen, passes))
            for part in sight.seen.idle:
                self._lines[entry.layer.trained[part].parameter.name][0] = 0.0
        return looks

    def _settle(self) -> None:
        """Audit the steps that were taken, and leave them to the writer."""
        assert self._writer is not None
        taken = self._waiting.take()
        self.steps = self._settled  # should one of them not be explained, the steps end there
        for one, explained in zip(taken, explain([one.looks for one in taken], self.steps), strict=True):
            self._writer.append(self._as_record(one, explained), self._kinds or {})
            if self._merger:
                self._merger.add_noted()
            self.steps += 1
            self._settled = self.steps
        if self._writer.full:
            self._seal()

    def _as_record(self, taken: Taken, explained: Sequence[Explained]) -> StepRecord:
        residual = dict(self._unseen)
        rows: dict[str, list[Rows]] = {}
        for look, (every_factor, left_over) in zip(taken.looks, explained, strict=True):
            name = look.probe.layer.name
            residual[name] = left_over
            # factors of 0: zeroed before the step, the pass never was in a gradient
            used = [(one, f) for one, f in zip(look.passes.values(), every_factor, strict=True) if f.any()]
            self._check_tags(one for one, _ in used)
            if self._merger:
                self._merger.note(name, [one for one, _ in used])
            else:
                rows[name] = [as_rows(one, name, factors, self._storage) for one, factors in used]
        return StepRecord({**self._idle, **taken.lines}, residual, rows)

    # What is known of the parameters

    def _parameters(self, index: int) -> Iterable[tuple[str, Tensor]]:
        """The recorded parameters that an optimiser steps, by name."""
        for entry, _ in self._layers_of[index]:
            for use, parameter in zip(entry.layer.trained, entry.trained(), strict=True):
                yield use.parameter.name, parameter

    def _fingerprint(self) -> tuple[str, Tensor]:
        """A row of a recorded weight, another weight and row each step.

        Whatever changes weights as a whole shows here within a few steps; a change of single rows shows
        here sooner or later, and in the certificate of its chapter in any case.
        """
        entry = self._recorded[self.steps % len(self._recorded)]
        weight = entry.trained()[0].detach()
        return entry.layer.trained[0].parameter.name, weight[(_SEED + 31 * self.steps) % weight.shape[0]]

    def _check_unchanged(self) -> None:
        name, now = self._fingerprint()
        if torch.equal(self._print, now):  # NaN never is; infinite weights make gradients that are refused
            return
        if not torch.isfinite(now).all():
            raise NotFinite(
                f"step {self.steps}: {name!r} has become NaN or infinite; lower the learning rate or look at the "
                "optimiser's options. The steps before it are kept"
            )
        raise ParameterChanged(
            f"step {self.steps}: {name!r} was changed between two optimiser steps (by assignment, "
            "clamping, averaging, load_state_dict?). Leave its layer out with layers=..., or make the "
            "change outside of recording. The steps before it are kept"
        )

    # Tags, memory, and the state of the recorder itself

    def _packer(self, entry: Recorded, values: bool) -> Pack:
        """What packs the keys or the values of a layer."""
        if self._merger or (values and not self._storage.values):
            return lambda rows: Packed(rows.cpu().clone(), None)  # needed until the step only, and then let go
        keys = entry.layer.keys
        if keys.index and not values:
            room = self._arena.room(keys.width, torch.int32)
            return lambda rows: Packed(room.empty(len(rows)).copy_(rows), None)
        room = self._arena.room(entry.layer.d_out if values else keys.width, TORCH[self._storage.dtype])
        return lambda rows: Packed(*pack(rows, room.empty(len(rows)), alike=not values))

    def _seal(self) -> None:
        assert self._writer is not None
        self._writer.put(self._merger.take() if self._merger else {})
        give_back = self._arena.hand_over()
        # Passes that wait for another optimiser's step still lie in these blocks.
        done = (lambda: None) if self._captures.waiting else give_back
        self._writer.seal(snapshot(self._model, self._optimizers), done=done)

    def _check_tags(self, passes: Iterable[Pass]) -> None:
        for capture in (capture for one in passes for capture in one.captures):
            kinds = capture.tags.kinds
            if self._storage.merge:  # nothing else is the same for all that is summed up
                kinds = capture.tags.only(self._storage.merge, self.steps)
            if self._kinds is None:
                self._kinds = kinds
            check_same(kinds, self._kinds, self.steps)

    def _check_running(self) -> None:
        if self._writer is None:
            raise RecordingError("the recorder is not on: use it in a with block")
        if self._failed is not None:
            raise RecordingError(f"recording stopped at step {self.steps}: {self._failed}") from self._failed


def record(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    path: str | Path,
    *,
    layers: str | Iterable[str] = "*",
    dtype: str | None = None,
    values: bool = True,
    merge: str | None = None,
    overwrite: bool = False,
    resume: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Recorder:
    """Record the training of a model's linear layers to a directory.

        with dualform.record(model, optimizer, "runs/mnist") as recorder:
            ...                                    # the training loop, unchanged
            recorder.tag(id=ids, label=labels)     # before each forward pass, if you like

    `optimizer` may be a list. `layers` is a name, a pattern such as "encoder.*", or a list of them; what
    "*" has to leave out is in `recorder.skipped`. `dtype` is the precision of stored keys and values:
    "float16" (rows scaled by powers of two), "float32" or "float64"; None is "float16", but "float32" for values of
    optimisers that divide elementwise, such as Adam, which magnify rounding. With `values=False` only keys are
    stored: attention weights work, outputs and muting do not, and any optimiser will do. With `merge`, the
    name of a tag such as "position", keys are summed up over all visits to the same value of the tag as they
    come: a small part of the bytes, and exact for `top(per="position")` and `total(by="position")`, but for
    nothing else. What is summed up is in memory until `recorder.sync()` or the end of the block. A run that
    exists is replaced only with `overwrite=True`.

    With `resume`, a step at which `recorder.sync()` was called, a run goes on from there: restore the model and
    the optimiser from the checkpoint taken at that step first. What was recorded after it is dropped, and
    `overwrite` says nothing. `about` is kept with the run, as it was begun: anything JSON can hold.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    values = values and merge is None
    dtype = _usual_dtype(optimizers, values) if dtype is None else dtype
    if dtype not in PRECISIONS:
        raise RecordingError(f"dtype must be one of {', '.join(PRECISIONS)}, not {dtype!r}")
    try:
        about = parsed(json.dumps(about or {}))  # as it will be read
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordingError(f"about must be what JSON can hold: {error}") from None
    storage = Storage(dtype=dtype, values=values, merge=merge)
    return Recorder(model, optimizers, Path(path), layers, storage, overwrite, resume, about or {})


def _usual_dtype(optimizers: Sequence[Optimizer], values: bool) -> str:
    magnified = values and any(ledger.rule_for(optimizer).magnifies_rounding for optimizer in optimizers)
    return "float32" if magnified else "float16"
