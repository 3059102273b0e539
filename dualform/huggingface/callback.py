"""Record from within a Trainer's loop, and leave nothing on it.

    on_train_begin      the trainer is found, the recorder started, the loader made to name examples
    training_step       takes the tags off its batch, and tells the recorder, just before the forward pass
    on_save             everything is written to the disk, as a checkpoint is
    on_log              stops the recorder after the last step, before the best weights are loaded

Events never see a batch, and none tells of an exception. So two of the trainer's methods, of this one object and until
the recorder stops, have a few lines of ours before them or around them: `training_step` and `_run_epoch`.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dualform.errors import CannotResume, RecordingError, listing
from dualform.huggingface.columns import ROW, TAGS, TaggedLoader
from dualform.kinds.hook import WHY_DISABLED, ModuleHook
from dualform.recorder import Recorder, record
from dualform.recorder.drawn import OWN_ORDER
from dualform.store import Backend, Where

_STATE = "dualform.huggingface.Record"  # of an entry in the trainer's state, which is saved with every checkpoint
_WHOLE = "train_runtime"  # is in the last figures that are logged, and in no others
_OPTIONS = {*inspect.signature(record).parameters} - {"model", "optimizer", "path", "resume", "distributed"}
_OTHER_ROWS = (
    "the model is called with other tensors than those of the batch (reordered, repeated or changed by compute_loss?): "
    "tags name the examples of the batch, row by row"
)


class Record(TrainerCallback):
    """Record the training of a `Trainer`.

        record = dualform.huggingface.Record("runs/x", tags=["id", "label"])
        Trainer(model, arguments, train_dataset=dataset, callbacks=[record]).train()
        memory = dualform.load(record.path)

    The columns need not be arguments of the model, and the model does not see them. `train(resume_from_checkpoint=...)`
    goes on with the run from that checkpoint. When the training ends, or fails, the run ends, and nothing stays on the
    model or on the trainer.

    Args:
        path: The run's directory, or a backend such as `dualform.store.InMemory()`.
        tags: Columns of the training data: numbers or strings, or lists with an entry for each token. `id` is always
            among them: the row of the data set, if it has no column of that name. None to record without tags.
        options: Those of `dualform.record`, but for those that the trainer decides: `layers`, `exclude`, `dtype`,
            `values`, `merge`, `on_unexplained`, `overwrite`, `about`, `provenance`.
    """

    def __init__(self, path: Where, tags: Sequence[str] | None = (ROW,), **options: Any) -> None:
        if unknown := options.keys() - _OPTIONS:
            raise TypeError(f"Record has no option {listing(sorted(unknown))}; choose from {listing(sorted(_OPTIONS))}")
        if isinstance(tags, str):
            raise TypeError(f"tags must be a list of columns, not {tags!r}: pass [{tags!r}]")
        self.path: Where | Backend = path
        self._tags = None if tags is None else tuple(dict.fromkeys((ROW, *tags)))
        self._options = options
        self._recorder: Recorder | None = None
        self._leave: list[Callable[[], object]] = []  # what is to be undone when the recorder stops
        self._inputs: Mapping[str, Any] = {}  # of the training step that is being made
        self._synced: int | None = None

    @property
    def recorder(self) -> Recorder:
        """The recorder of this training, or of the last one."""
        if self._recorder is None:
            raise RecordingError("there is no recorder before the training has begun: call trainer.train()")
        return self._recorder

    def stop(self, error: BaseException | None = None) -> None:
        """End the run, and take everything off the model and the trainer. The end of a training does that by itself."""
        while self._leave:
            self._leave.pop()()
        if self._recorder is not None:
            self._recorder.__exit__(type(error) if error else None, error, None)

    # Events

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start to record; go on with a run, if the training does."""
        self.stop()
        trainer = self._trainer()
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise RecordingError(
                "FSDP and DeepSpeed shard parameters over processes, so that no layer has its whole gradient: train in "
                "one process, or in several with DistributedDataParallel (torchrun alone)"
            )
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        several = args.world_size > 1 or args.n_gpu > 1  # then what is around the model says how gradients are shared
        passed = trainer.model_wrapped if several else model
        own = getattr(optimizer, "optimizer", optimizer)  # within the one of Accelerate
        self._recorder = record(passed, own, self.path, resume=_steps_before(state), **self._options).start()
        self._synced = None
        self._note_steps(state)
        try:
            self._replace(trainer, "_run_epoch", self._run_epoch)
            if self._tags is not None:
                tagged = TaggedLoader(kwargs["train_dataloader"], self._tags, trainer.train_dataset)
                self._leave.append(tagged.restore)
                if not tagged.keeps_order:
                    self._recorder.note(OWN_ORDER)
                self._replace(trainer, "training_step", self._training_step)
                unknown = {*self._tags} - {*_arguments(model)}
                hook = ModuleHook(torch.compiler.disable(partial(self._before_forward, unknown), **WHY_DISABLED))
                self._leave.append(model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True).remove)
        except BaseException as error:
            self.stop(error)
            raise

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Note the steps in what is saved with a checkpoint; write them first, if one is about to be saved."""
        self._note_steps(state)
        if control.should_save:
            self._sync()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Likewise."""
        if control.should_save:
            self._sync()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write all steps to the disk, unless that was done before the checkpoint was saved."""
        self._sync()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Stop after the last step, before the best weights are loaded."""
        if logs and _WHOLE in logs:
            self.stop()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop, if a trainer has logged nothing."""
        self.stop()

    # Between events

    def _run_epoch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            self.stop(error)
            raise

    def _training_step(self, original: Callable[..., Any], model: nn.Module, inputs: Any, *args: Any, **kw: Any) -> Any:
        tags = inputs.pop(TAGS, None) if isinstance(inputs, MutableMapping) else None
        if tags is None:
            raise RecordingError(
                "a batch has come to training_step that is not as the training's data loader made it, so it is not "
                "known which examples it holds: leave its entries in place, or pass tags=None to record without tags"
            )
        self.recorder.tag(**tags)
        self._inputs = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        try:
            return original(model, inputs, *args, **kw)
        finally:
            self._inputs = {}

    def _before_forward(
        self, unknown: set[str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Keep columns from the model that it has no argument for; see whether it gets the rows of the batch."""
        if module.training and any(
            isinstance(kwargs.get(name), Tensor) and not _equal(kwargs[name], value)
            for name, value in self._inputs.items()
        ):
            self._inputs = {}
            self.recorder.note(_OTHER_ROWS)
            warnings.warn(_OTHER_ROWS, stacklevel=2)
        if unknown.isdisjoint(kwargs):
            return None
        return args, {name: value for name, value in kwargs.items() if name not in unknown}

    def _note_steps(self, state: TrainerState) -> None:
        noted: Any = state.stateful_callbacks
        noted[_STATE] = {"args": {}, "attributes": {"steps": self.recorder.steps}}

    def _sync(self) -> None:
        if self._leave and self._synced != self.recorder.steps:
            self._synced = self.recorder.sync()

    def _trainer(self) -> Trainer:
        """Return the trainer that calls this callback: events do not tell."""
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            caller = frame.f_locals.get("self")
            if isinstance(caller, Trainer) and self in caller.callback_handler.callbacks:
                if not hasattr(caller, "_run_epoch"):
                    raise RecordingError("this needs transformers 5.3 or later: pip install -U transformers")
                return caller
        raise RecordingError("Record is a callback of transformers.Trainer: Trainer(..., callbacks=[Record(path)])")

    def _replace(self, trainer: Trainer, name: str, method: Callable[..., Any]) -> None:
        """Replace a method of this one trainer, until the recorder stops."""
        own = vars(trainer)
        before = own.get(name)
        own[name] = partial(method, getattr(trainer, name))
        self._leave.append(partial(own.pop, name) if before is None else partial(own.__setitem__, name, before))


def _steps_before(state: TrainerState) -> int | None:
    """Return how many steps were recorded when the checkpoint was saved from which a training goes on; None if none."""
    if not state.global_step:
        return None
    noted: Any = state.stateful_callbacks
    if _STATE not in noted:
        raise CannotResume(
            f"the checkpoint of step {state.global_step} was saved by a training that was not recorded, and a memory "
            "begins where a training does: train from the start"
        )
    return int(noted[_STATE]["attributes"]["steps"])


def _arguments(model: nn.Module) -> list[str]:
    """Return the names of a model's arguments; of the model within that of peft."""
    base = getattr(model, "get_base_model", None)
    return [*inspect.signature((base() if base else model).forward).parameters]


def _equal(value: Tensor, other: Tensor) -> bool:
    return value is other or (value.shape == other.shape and torch.equal(value, other))
