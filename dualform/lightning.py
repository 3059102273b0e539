"""Record what a Lightning Trainer trains, by one callback.

    record = dualform.lightning.Record("runs/mine", tags=lambda batch: {"label": batch[1]})
    L.Trainer(callbacks=[record]).fit(model, loader)
    memory = dualform.load("runs/mine")

When Lightning calls what, and what is done then:

    setup                    loaders are watched from now on: the first one is iterated before training starts
    load_state_dict          a checkpoint is resumed: from which step of the run
    on_train_start           recording begins: checks of validation are over, states are restored
    on_train_batch_start     the batch is tagged. A step's closure, which makes its gradients, comes later
    on_train_batch_end       its tags are forgotten
    state_dict               a checkpoint is saved: all steps are written
    on_train_end             recording ends; or in on_exception, which an interrupt calls, too
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from dualform.errors import MissingExtra, ParameterChanged, RecordingError, listing
from dualform.recorder import Recorder, record
from dualform.recorder.drawn import OWN_ORDER, Drawn, keeps_order, watched
from dualform.store import InMemory, Where


def _callback() -> type:
    """Return the base of callbacks of the package that is in use; of Lightning's two names for one, either will do."""
    packages = ("lightning.pytorch", "pytorch_lightning")
    for package in sorted(packages, key=lambda name: name not in sys.modules):
        try:
            base: type = import_module(package).Callback
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("lightning", "pytorch_lightning"):
                raise
        else:
            return base
    raise MissingExtra("lightning", "lightning")


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = _callback()

_DECIDED = {"resume", "distributed"}  # by the checkpoint, and by the trainer's strategy
_OPTIONS = {name for name, p in signature(record).parameters.items() if p.kind is Parameter.KEYWORD_ONLY} - _DECIDED
# Strategies by name, since importing some needs packages that may be missing
_SHARDED = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"}
_STEP = "step"  # of the run, in a checkpoint
_BY_SHAPE = (
    "Lightning's strategy makes training_step the forward pass of the model, which cannot be called again to prove "
    "whose rows are: tags go by the shape of a layer's rows, which was not proven to be right"
)


class Record(Callback):
    """Record what a Lightning Trainer trains: `L.Trainer(callbacks=[dualform.lightning.Record("runs/mine")])`.

        record = Record("runs/mine", tags=lambda batch: {"id": record.ids, "label": batch[1]})

    It begins when training does, after sanity checks, and ends with it, or with an error or an interrupt. Checkpoints
    carry the step of the run, so that `trainer.fit(ckpt_path=...)` goes on with both. Without `ckpt_path`, a second
    `fit` is another training, and needs a path of its own, or `overwrite=True`. A `fast_dev_run` is recorded in memory.
    Callbacks that change weights when training ends, as averages of weights do, come after this one.

    Args:
        path: The run's directory, or a backend.
        tags: What returns the tags of a batch, by name. None numbers the examples: `id` is the row of the dataset,
            however it is shuffled. That takes one map-style DataLoader.
        options: Those of `dualform.record`: `layers`, `exclude`, `dtype`, `values`, `merge`, `on_unexplained`,
            `overwrite`, `about`, `provenance`.
    """

    def __init__(self, path: Where, tags: Callable[[Any], Mapping[str, Any]] | None = None, **options: Any) -> None:
        if unknown := options.keys() - _OPTIONS:
            raise TypeError(f"Record has no option {listing(unknown)}; choose from {listing(sorted(_OPTIONS))}")
        self.path = path
        self._tags, self._options = tags, options
        self._recorder: Recorder | None = None
        self._recording = False
        self._resume: int | None = None
        self._drawn: Drawn | RecordingError | None = None  # what remembers ids, or why nothing does
        self._keeps_order = True
        self._first_batch: int | None = None  # the number of the first batch that is drawn in an epoch

    @property
    def recorder(self) -> Recorder:
        """The recorder, once training has begun; afterwards, until the next `fit`, of that training."""
        if self._recorder is None:
            raise RecordingError("there is no recorder before training starts: call trainer.fit(...) first")
        return self._recorder

    @property
    def ids(self) -> Any:
        """The rows of the dataset that are in the current batch."""
        if not isinstance(self._drawn, Drawn):
            why = self._drawn or "they are known while training"
            raise RecordingError(f"the ids of this batch are not known: {why}") from self._drawn
        if not self._keeps_order:
            self.recorder.note(OWN_ORDER)
        return self._drawn.ids

    # Before training

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        if stage != "fit":
            return
        if sharded := _SHARDED & {kind.__name__ for kind in type(trainer.strategy).__mro__}:
            raise RecordingError(
                f"{min(sharded)} shards parameters over processes, so that no layer has its whole gradient: train with "
                "strategy='ddp', or on one device"
            )
        if "dataloader_iter" in signature(pl_module.training_step).parameters:
            raise RecordingError(
                "training_step(dataloader_iter) fetches its batches by itself, so that they cannot be tagged before: "
                "let it take (batch, batch_idx)"
            )
        self._recorder = self._resume = self._drawn = None
        process = trainer.strategy.process_dataloader

        def watch(loader: Any) -> Any:
            """Watch training loaders on their way: in all of Lightning's, the only place before they are iterated."""
            return process(self._watched(loader) if trainer.training else loader)

        vars(trainer.strategy)["process_dataloader"] = watch

    def _watched(self, loader: Any) -> Any:
        try:
            loader, self._drawn = watched(loader)
            self._keeps_order = keeps_order(loader)
        except RecordingError as error:
            self._drawn = error
        return loader

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        vars(trainer.strategy).pop("process_dataloader", None)

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if not isinstance(trainer.train_dataloader, DataLoader) and isinstance(self._drawn, Drawn):
            self._drawn = RecordingError(
                "training takes several loaders at once; let each dataset give ids, and tag them"
            )
        tried = getattr(trainer, "fast_dev_run", False)
        if tried and trainer.world_size > 1:
            warnings.warn("a fast_dev_run in several processes is not recorded: they share no memory", stacklevel=2)
            return
        place, resume = (InMemory(), None) if tried else (self.path, self._resume)
        wrapped, options = trainer.model, self._options
        if wrapped is not pl_module:  # whose forward pass is training_step then, which must not be called again
            options = {**options, "provenance": False}
        assert wrapped is not None
        self._recorder = record(wrapped, trainer.optimizers, place, resume=resume, **options).start()
        if wrapped is not pl_module:
            self._recorder.note(_BY_SHAPE)
        self._recording, self._first_batch = True, None

    # While training

    def on_train_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._first_batch = 0

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        if not self._recording:
            return
        if self._first_batch is None:  # an epoch is gone on with, by a loader that starts anew
            self._first_batch = batch_idx
        if isinstance(self._drawn, Drawn):
            self._drawn.advance(batch_idx - self._first_batch)
        self.recorder.tag_batch(**({"id": self.ids} if self._tags is None else self._tags(batch)))

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._recording:
            self.recorder.tag_batch()  # no tags: what is called in between is another batch

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if not self._recording:
            return
        known, self._recording = self.recorder.notes, False
        self.recorder.stop()
        for note in self.recorder.notes:
            if note not in known:
                warnings.warn(note, stacklevel=2)

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        vars(trainer.strategy).pop("process_dataloader", None)  # teardown is not called then
        if self._recording:
            self._recording = False
            self.recorder.__exit__(type(exception), exception, exception.__traceback__)

    # Checkpoints

    @property
    def state_key(self) -> str:
        """By the run, so that a trainer can have several of these."""
        name = Path(self.path).name if isinstance(self.path, str | Path) else type(self.path).__name__
        return f"{type(self).__qualname__}{{'run': {name!r}}}"

    def state_dict(self) -> dict[str, Any]:
        """Write all steps; what a checkpoint keeps is the number of the last one."""
        if self._recorder is None:
            return {}
        if not self._recording:
            return {_STEP: self._recorder.steps}
        try:
            return {_STEP: self._recorder.sync()}
        except ParameterChanged as error:
            warnings.warn(f"this checkpoint is none to go on recording from: {error}", stacklevel=2)
            return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume = int(state_dict[_STEP])
