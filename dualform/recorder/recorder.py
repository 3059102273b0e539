"""Record a training loop in a `with` block that leaves nothing on the model.

    with dualform.record(model, optimizer, "runs/mnist") as recorder:
        for images, labels in loader:
            recorder.tag(label=labels)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()

A step is one call of an optimiser's `step`. This is the user's side; session.py has what happens in each step.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from dualform.errors import DualformError, RecordingError
from dualform.recorder.arguments import as_optimizers, as_place, check_model, check_shared
from dualform.recorder.begin import Start
from dualform.recorder.drawn import OWN_ORDER, IdentifiedBatches, keeps_order
from dualform.recorder.estimate import Estimate, estimate
from dualform.recorder.layers import Names
from dualform.recorder.plan import RecordingPlan, make_plan, registered_rule
from dualform.recorder.session import Session
from dualform.recorder.tags import Tags
from dualform.recorder.world import ALONE, join_world, unwrapped
from dualform.store import Storage, Where
from dualform.store.coverage import Coverage
from dualform.store.schema import PRECISIONS
from dualform.strict_json import parse


class Recorder:
    """Made by `dualform.record`; see there."""

    def __init__(
        self, plan: RecordingPlan, start: Start, drop_unexplained: bool, distributed: bool, wrapper: nn.Module | None
    ) -> None:
        self.path = start.where
        self.skipped = dict(plan.skipped)
        self._plan, self._start, self._drop_unexplained = plan, start, drop_unexplained
        self._distributed, self._wrapper = distributed, wrapper
        self._session: Session | None = None
        self._is_tagging = False  # batches of a loader

    @property
    def layers(self) -> list[str]:
        """Names of the layers that are recorded."""
        return [layer.name for layer in self._plan.layers if layer.name not in self.dropped]

    @property
    def dropped(self) -> dict[str, int]:
        """Layers that are not recorded any more, each with the step from which it is missing."""
        return {} if self._session is None else dict(self._session.writer.dropped)

    @property
    def coverage(self) -> Coverage:
        """Which share of the trainable parameters is recorded, and why not more: `print(recorder.coverage)`.

        Before the first step, what will be accounted for is an estimate.
        """
        return self._plan.coverage if self._session is None else self._session.coverage

    @property
    def notes(self) -> list[str]:
        """What could not be proven, or was not as expected, each once."""
        return [] if self._session is None else list(self._session.notes)

    @property
    def steps(self) -> int:
        """How many steps were recorded so far."""
        return (self._start.resume or 0) if self._session is None else self._session.steps

    def tag(self, /, **columns: Any) -> None:
        """Say what the rows of the coming forward passes are: `recorder.tag(id=ids, label=labels, task="a")`.

        Tags hold until the next `tag` or step. Every batch needs the same ones. Where a step's first forward pass has
        none yet, each pass of the step has those that follow it.

        Args:
            columns: Scalars and strings, which hold for every row, or arrays with one entry an example, or one for each
                of its tokens, in the shape of the batch. Rows that belong to no single example, as those of a position
                table do, have no tag but scalars.
        """
        session = self._session  # and not self._running: one call less in every step
        if session is None or session.closed or session.failure is not None:
            raise self._not_running()
        session.provenance.tag(Tags(columns))

    def tag_batch(self, /, **columns: Any) -> None:
        """Say what the rows of a batch are, however many steps are taken with it: `recorder.tag_batch(id=ids)`.

        As `tag`, but these tags hold until the next call of either: where a batch is used in the steps of several
        optimisers, and in a trainer's callbacks. Without tags, none hold any more.
        """
        if columns:
            self._running.provenance.tag(Tags(columns), lasting=True)
        elif self._session is not None:
            self._session.provenance.untag()

    def ids(self, loader: Any, *, tag: bool = True) -> IdentifiedBatches:
        """Go through a DataLoader, with the ids of the examples in each batch: their rows in its dataset.

            for ids, (images, labels) in recorder.ids(loader):
                ...                                             # slots are tagged by `id` already

        It draws what the loader would have drawn, with any sampler and any workers, shuffled by the same random
        numbers. Loaders that Accelerate has prepared will do. To tag more, call `tag` or `tag_batch` with all tags.
        Iterable datasets do not say which examples they give, and raise.

        Args:
            loader: The DataLoader. A collate function of its own is taken to keep examples in their order.
            tag: False not to tag, where batches of several loaders meet in a step: then say which batch is coming.

        Returns:
            What can be iterated once in each epoch, and has the loader's length.
        """
        session = self._running
        batches = IdentifiedBatches(loader, self._tagging) if tag else IdentifiedBatches(loader)
        if not keeps_order(loader):
            session.note(OWN_ORDER)
        return batches

    @contextmanager
    def _tagging(self) -> Iterator[Callable[[Any], None]]:
        """Tag batches of one loader; raise if those of another one are being tagged."""
        if self._is_tagging:
            raise RecordingError(
                "two loaders are iterated at once, so that it is not known whose batch comes next: pass tag=False to "
                "recorder.ids(...), and call recorder.tag(id=...) before each forward pass"
            )
        self._is_tagging = True
        try:
            yield lambda ids: self.tag_batch(id=ids)
        finally:
            self._is_tagging = False
            self.tag_batch()

    def note(self, text: str) -> None:
        """Keep what a reader of the run should know, once: it is in `notes`, and goes with the run."""
        self._running.note(text)

    def estimate(self, steps: int, batch: int) -> Estimate:
        """Estimate the bytes of a run, before repeated keys and zeros are left out.

        Args:
            steps: How many steps will be recorded.
            batch: How many slots go through each layer in a step.
        """
        snapshots = self._plan.snapshots()
        state = snapshots.whole()
        return estimate(self._plan.manifest, state, snapshots.trained(state), steps, batch)

    def sync(self) -> int:
        """Write everything so far to the disk, where a checkpoint is saved.

        Returns:
            The number of steps on the disk, to be passed as `resume` to go on from this checkpoint.
        """
        session = self._running
        session.sync()
        return session.steps

    def start(self) -> Self:
        """Begin to record, where a `with` block does not fit: `recorder = dualform.record(...).start()`.

        Call `stop` at the end. What was synced, or written in the background, is kept in any case.
        """
        if self._session is not None:
            raise RecordingError("a recorder can be entered once; call dualform.record again")
        if self._plan.missed:  # before any hook is on: a warning may be an error
            warnings.warn(f"dualform does not record {self._plan.missed}", stacklevel=2)
        world = join_world(self._wrapper) if self._distributed else ALONE
        self._session = Session(self._plan, self._start, self._drop_unexplained, world)
        return self

    __enter__ = start  # itself and not a call of it, so that a warning names the user's line

    def stop(self) -> None:
        """Take the hooks off and end the run, as the end of a `with` block does. To stop twice does no harm."""
        self.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None:
            raise self._not_running()
        if self._session.closed:
            return
        try:
            self._session.close(kind)
        except DualformError as trouble:
            if error is None:
                raise
            error.add_note(f"dualform could not keep the last steps: {trouble}")

    @property
    def _running(self) -> Session:
        session = self._session
        if session is None or session.closed or session.failure is not None:
            raise self._not_running()
        return session

    def _not_running(self) -> RecordingError:
        if self._session is None:
            return RecordingError("the recorder is not on: use it in a with block, or call start() first")
        return self._session.stop_error()


def record(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    path: Where,
    *,
    layers: Names = "*",
    exclude: Names = (),
    dtype: str | None = None,
    values: bool = True,
    merge: str | None = None,
    on_unexplained: str = "raise",
    overwrite: bool = False,
    resume: int | None = None,
    about: Mapping[str, Any] | None = None,
    provenance: bool = True,
    distributed: bool | None = None,
) -> Recorder:
    """Record the training of a model's linear layers to a directory.

        with dualform.record(model, optimizer, "runs/mnist") as recorder:
            ...                                    # the training loop, unchanged
            recorder.tag(id=ids, label=labels)     # before each forward pass, if you like

    Nothing stays on the model when the block ends.

    Args:
        model: The model as it is trained.
        optimizer: Its optimiser, or a list of them.
        path: The run's directory, or a backend such as `dualform.store.InMemory()`. Several processes need one that
            all of them see, by the same name.
        layers: A name, a pattern such as `encoder.*`, or a list of them; what `*` has to leave out is in
            `recorder.skipped`.
        exclude: Likewise, which of these to leave out, such as "*.wpe".
        dtype: The precision of stored keys and values: "float16" (rows scaled by powers of two), "float32" or
            "float64". None is "float16", but "float32" for values of optimisers that divide elementwise, such as
            Adam, which magnify rounding.
        values: False to store keys only: attention weights work, outputs and muting do not, and any optimiser will
            do.
        merge: The name of a tag such as "position": keys are summed up over all visits to the same value of the tag
            as they come. That takes a small part of the bytes, and is exact for `top(per="position")` and
            `total(by="position")`, but for nothing else. Sums are in memory until `recorder.sync()` or the end of the
            block.
        on_unexplained: What to do about a layer whose gradient is not the sum of what went through it, since its weight
            is used elsewhere too, say. "raise", or "drop": warn, and record all other layers; of this one nothing can
            be asked.
        overwrite: True to replace a run that exists. One in which no step was recorded is replaced in any case.
        resume: A step at which `recorder.sync()` was called: the run goes on from there. Restore the model and the
            optimiser from the checkpoint taken at that step first. What was recorded after it is dropped, and
            `overwrite` is ignored.
        about: Anything JSON can hold, kept with the run as it was begun.
        provenance: Whether to find out by an experiment which example of a batch each row of a layer belongs to, so
            that tags are right however the model lays its rows out. For that the model is called a few times more, in
            evaluation mode, whenever tags come with a batch of a new shape. False to go by the shape of the rows. What
            could not be proven is in `recorder.notes`.
        distributed: Whether gradients are the mean over all processes of torch.distributed, each of which has to call
            this, and step, sync and stop, alike: they record one run together. None: they are if the model is wrapped
            in `DistributedDataParallel`. True is for a trainer that keeps the wrapper to itself.

    Returns:
        The recorder, to be used in a `with` block, or with `start` and `stop`.
    """
    check_model(model)
    model, wrapper = unwrapped(model)
    distributed = wrapper is not None if distributed is None else distributed
    optimizers, where = as_optimizers(optimizer), as_place(path)
    values = values and merge is None
    if dtype is None:
        magnified = values and any(registered_rule(optimizer).magnifies_rounding for optimizer in optimizers)
        dtype = "float32" if magnified else "float16"
    if dtype not in PRECISIONS:
        raise RecordingError(f"dtype must be one of {', '.join(PRECISIONS)}, not {dtype!r}")
    if on_unexplained not in ("raise", "drop"):
        raise RecordingError(f'on_unexplained must be "raise" or "drop", not {on_unexplained!r}')
    try:
        about = parse(json.dumps(about or {}, allow_nan=False))  # as it will be read
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordingError(f"about must be what JSON can hold: {error}") from None
    storage = Storage(dtype=dtype, values=values, merge=merge)
    plan = make_plan(model, optimizers, layers, exclude, storage, about or {}, provenance)
    if distributed:
        check_shared(where, merge)
    return Recorder(plan, Start(where, overwrite, resume), on_unexplained == "drop", distributed, wrapper)
