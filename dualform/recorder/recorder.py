"""The recorder: a `with` block around a training loop, nothing of which stays on the model.

    with dualform.record(model, optimizer, "runs/mnist") as recorder:
        for images, labels in loader:
            recorder.tag(label=labels)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()

A step is one call of an optimiser's `step`. Here is the user's side of it; session.py has what happens in each step.
"""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from dualform.errors import DualformError, RecordingError
from dualform.recorder.estimate import Estimate, estimate
from dualform.recorder.plan import Plan, make_plan, registered_rule
from dualform.recorder.session import Session
from dualform.recorder.tags import Tags
from dualform.store import Backend, Storage, Where
from dualform.store.schema import PRECISIONS
from dualform.strict_json import parse


class Recorder:
    """Made by `dualform.record`; see there."""

    def __init__(self, plan: Plan, path: Path | Backend, overwrite: bool, resume: int | None) -> None:
        self.path = path
        self.skipped = dict(plan.skipped)
        self._plan, self._overwrite, self._resume = plan, overwrite, resume
        self._session: Session | None = None

    @property
    def layers(self) -> list[str]:
        """Names of the layers that are recorded."""
        return [layer.name for layer in self._plan.layers]

    @property
    def steps(self) -> int:
        """How many steps were recorded so far."""
        return (self._resume or 0) if self._session is None else self._session.steps

    def tag(self, **columns: Any) -> None:
        """Say what the rows of the coming forward passes are: `recorder.tag(id=ids, label=labels, task="a")`.

        Scalars and strings hold for every row; arrays have one entry a row, in the shape of the batch.
        Tags hold until the next `tag` or step. Every batch needs the same ones.
        """
        session = self._session
        if session is None or session.failure is not None:
            raise self._not_running()
        session.tags = Tags(columns)

    def estimate(self, steps: int, batch: int) -> Estimate:
        """The bytes that `steps` steps of `batch` slots each take, before repeated keys and zeros are left out."""
        return estimate(self._plan.manifest, self._plan.state(), steps, batch)

    def sync(self) -> int:
        """Put everything so far on the disk and return the number of steps there; call it at checkpoints."""
        session = self._session
        if session is None or session.failure is not None:
            raise self._not_running()
        session.sync()
        return session.steps

    def _not_running(self) -> RecordingError:
        if self._session is None:
            return RecordingError("the recorder is not on: use it in a with block")
        return self._session.stopped()

    def __enter__(self) -> Self:
        if self._session is not None:
            raise RecordingError("a recorder can be entered once; call dualform.record again")
        if self.skipped:  # before any hook is on: a warning may be an error
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            warnings.warn(f"dualform does not record {reasons}", stacklevel=2)
        self._session = Session(self._plan, self.path, self._overwrite, self._resume)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        try:
            self._session.close(kind)
        except DualformError as trouble:
            if error is None:
                raise
            error.add_note(f"dualform could not keep the last steps: {trouble}")


def record(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    path: Where,
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
    exists is replaced only with `overwrite=True`. `path` may be a backend, such as `dualform.store.InMemory()`.

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
        about = parse(json.dumps(about or {}))  # as it will be read
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordingError(f"about must be what JSON can hold: {error}") from None
    storage = Storage(dtype=dtype, values=values, merge=merge)
    where = path if isinstance(path, Backend) else Path(path)
    return Recorder(make_plan(model, optimizers, layers, storage, about or {}), where, overwrite, resume)


def _usual_dtype(optimizers: Sequence[Optimizer], values: bool) -> str:
    magnified = values and any(registered_rule(optimizer).magnifies_rounding for optimizer in optimizers)
    return "float32" if magnified else "float16"
