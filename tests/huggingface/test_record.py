"""A Trainer is recorded by a callback: the right tags, the right steps, and nothing is left behind."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.data.data_collator import DataCollatorWithFlattening

import dualform
from benchmarks.contents import contents
from dualform.errors import CannotResume, RecordingError, RunExists
from dualform.huggingface import Record
from dualform.store import Run
from tests.huggingface.training import PADDING, Rows, check_left_alone, gpt2, pad, pad_left, prepare, tokens_by, train

pytestmark = pytest.mark.slow

EPOCHS = 2


def test_transformers_is_not_imported_with_dualform() -> None:
    lines = "import sys, dualform; dir(dualform); dualform.huggingface; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", lines], check=True)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {"bf16": True, "optim": "sgd"}), (2, {"collate": pad_left, "train_sampling_strategy": "group_by_length"})],
)
def test_tags_are_those_of_the_rows(tmp_path: Path, ids: bool, workers: int, options: dict[str, Any]) -> None:
    rows = Rows(ids=ids)
    tags = {"tags": ["id", "place"]}
    train(tmp_path, dataset=rows, record=tags, dataloader_num_workers=workers, num_train_epochs=EPOCHS, **options)

    by_place = Counter(tokens_by(tmp_path, "place"))
    padded = by_place.pop((-1, PADDING))
    assert padded
    expected = {
        (place, token): EPOCHS for row in rows.rows for place, token in zip(row["place"], row["input_ids"], strict=True)
    }
    assert by_place == expected

    by_id = Counter(tokens_by(tmp_path, "id"))
    for i, row in enumerate(rows.rows):
        name = row["id"] if ids else i
        own = Counter({token: number for (one, token), number in by_id.items() if one == name and token != PADDING})
        assert own == Counter(EPOCHS * row["input_ids"])
    assert by_id.total() == by_place.total() + padded


def test_examples_that_are_packed_have_tags_by_token(tmp_path: Path) -> None:
    rows = Rows()
    flatten: Any = DataCollatorWithFlattening
    trained = train(tmp_path, dataset=rows, collate=flatten(), record={"tags": ["place"]})
    (note,) = trained.record.recorder.notes  # and none of the order of examples, which this collator keeps
    assert note.startswith("a batch of one shows no difference")
    expected = {
        (place, token): EPOCHS for row in rows.rows for place, token in zip(row["place"], row["input_ids"], strict=True)
    }
    assert Counter(tokens_by(tmp_path, "place")) == expected
    named = {(row["id"], token) for row in rows.rows for token in row["input_ids"]}
    assert set(tokens_by(tmp_path, "id")) == named


class Own(Trainer):
    """A subclass that chooses what it passes to the model, and how rows are loaded."""

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        assert set(inputs) == {"input_ids", "attention_mask", "labels"}
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())

    def get_train_dataloader(self) -> Any:
        dataset: Any = self.train_dataset
        return torch.utils.data.DataLoader(dataset, batch_size=3, shuffle=True, collate_fn=pad)


def test_a_trainer_with_a_loss_and_a_loader_of_its_own(tmp_path: Path) -> None:
    rows = Rows(ids=False)
    train(tmp_path, trainer=Own, dataset=rows, num_train_epochs=1)
    known = {(i, token) for i, row in enumerate(rows.rows) for token in [*row["input_ids"], PADDING]}
    assert set(tokens_by(tmp_path, "id")) <= known
    assert {i for i, _ in tokens_by(tmp_path, "id")} == set(range(len(rows)))


def test_a_callback_that_is_added_later(tmp_path: Path) -> None:
    trained = prepare(tmp_path)
    trained.trainer.pop_callback(trained.record)
    trained.trainer.add_callback(trained.record)
    with pytest.raises(RecordingError, match="no recorder before the training has begun"):
        _ = trained.record.recorder
    trained.trainer.train()
    assert trained.record.recorder.steps == dualform.load(trained.record.path).steps == 6


def keep(rows: Any) -> dict[str, Any]:
    return {**pad(rows), "id": [row["id"] for row in rows]}


def test_the_model_does_not_see_columns_that_a_collator_keeps(tmp_path: Path) -> None:
    train(tmp_path, collate=keep, remove_unused_columns=False, eval_strategy="epoch")


class Reversed(Trainer):
    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, {name: rows.flip(0) for name, rows in inputs.items()}, *args, **kwargs)


def test_a_loss_that_reorders_the_batch_is_told_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="called with other tensors than those of the batch"):
        trained = train(tmp_path, trainer=Reversed)
    assert "called with other tensors" in str(trained.record.recorder.notes)


# Steps, checkpoints, evaluation


class Weights(TrainerCallback):
    """Keeps the embedding after each step."""

    def __init__(self) -> None:
        self.after: list[torch.Tensor] = []

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.after.append(kwargs["model"].get_input_embeddings().weight.detach().clone())


def test_evaluation_is_no_part_of_a_run_nor_are_the_best_weights(tmp_path: Path) -> None:
    seen, often = Weights(), {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    # The "best" model is the worst one, which is not that of the last step.
    best = {"load_best_model_at_end": True, "learning_rate": 1.0, "eval_on_start": True, "greater_is_better": True}
    trained = train(tmp_path, callbacks=[seen], dataset=Rows(ragged=False), **often, **best)
    memory = dualform.load(trained.record.path)
    assert memory.steps == len(seen.after) == 6
    loaded = trained.model.get_input_embeddings().weight  # type: ignore[operator]
    assert not torch.equal(loaded, seen.after[-1])
    for step, weights in enumerate(seen.after, start=1):
        of_run = memory.until(step=step).weights("transformer.wte")["transformer.wte.weight"]
        torch.testing.assert_close(torch.as_tensor(of_run).to(weights), weights, rtol=1e-4, atol=1e-4)
    assert len(tokens_by(tmp_path, "id")) == EPOCHS * 22 * 6


class Interrupt(TrainerCallback):
    """An interrupt at an event, once the trainer is at step 3."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self._interrupt)

    def _interrupt(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_that_goes_on_is_the_uninterrupted_one(tmp_path: Path, workers: int) -> None:
    """With dropout, and a checkpoint in the midst of an epoch, after which the last steps of the first try are lost."""
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "dataloader_num_workers": workers}
    train(tmp_path / "whole", **options)
    cut = prepare(tmp_path / "cut", callbacks=[Interrupt("on_pre_optimizer_step")], **options)
    with pytest.raises(KeyboardInterrupt):
        cut.trainer.train()
    assert dualform.load(cut.record.path).steps == 3

    again = prepare(tmp_path / "cut", model=gpt2(), **options)
    with pytest.raises(RunExists):
        again.trainer.train()
    again = prepare(tmp_path / "cut", model=gpt2(), record={"overwrite": True}, **options)
    again.trainer.train(resume_from_checkpoint=True)
    check_left_alone(again)
    assert contents(tmp_path / "cut" / "run") == contents(tmp_path / "whole" / "run")


def test_a_checkpoint_without_a_recording_is_none_to_go_on_from(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    plain = prepare(tmp_path, **options)
    plain.trainer.remove_callback(plain.record)
    plain.trainer.train()
    trained = prepare(tmp_path, **options)
    with pytest.raises(CannotResume, match="saved by a training that was not recorded"):
        trained.trainer.train(resume_from_checkpoint=str(tmp_path / "trained" / "checkpoint-2"))
    check_left_alone(trained)


class Swap(TrainerCallback):
    """Averaged weights, which take the place of the model's while a checkpoint is saved."""

    average: nn.Module

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.average = torch.optim.swa_utils.AveragedModel(kwargs["model"]).module

    def _swap(self, model: nn.Module) -> None:
        for own, averaged in zip(model.parameters(), self.average.parameters(), strict=True):
            own.data, averaged.data = averaged.data, own.data

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_save:
            self._swap(kwargs["model"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._swap(kwargs["model"])


def test_weights_may_be_swapped_while_a_checkpoint_is_saved(tmp_path: Path) -> None:
    train(tmp_path, callbacks=[Swap()], save_strategy="steps", save_steps=2)


# Failures


class Fails(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise ValueError("no loss")
        return super().compute_loss(*args, **kwargs)


EVENTS = ("substep_end", "pre_optimizer_step", "step_end", "evaluate", "save")


@pytest.mark.parametrize("where", ["compute_loss", *EVENTS])
def test_a_training_that_fails_leaves_a_run_and_nothing_else(tmp_path: Path, where: str) -> None:
    every: dict[str, Any] = {"save_steps": 3, "eval_steps": 3, "logging_steps": 3}
    every |= dict.fromkeys(("save_strategy", "eval_strategy", "logging_strategy"), "steps")
    fails = where == "compute_loss"
    callbacks = [] if fails else [Interrupt(f"on_{where}")]
    trained = prepare(tmp_path, trainer=Fails if fails else Trainer, callbacks=callbacks, **every)
    with pytest.raises(ValueError if fails else KeyboardInterrupt):
        trained.trainer.train()
    check_left_alone(trained)
    run = Run(tmp_path / "run")
    assert run.ended == ("ValueError" if fails else "KeyboardInterrupt")
    memory = dualform.load(run.path)
    assert memory.steps == 3
    assert memory.verify().ok
    prepare(tmp_path, model=trained.model, record={"overwrite": True}, max_steps=1).trainer.train()


class Clamp(TrainerCallback):
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        nn.utils.clip_grad_value_(kwargs["model"].parameters(), 1e-4)


def test_what_cannot_be_recorded_ends_the_training(tmp_path: Path) -> None:
    trained = prepare(tmp_path, callbacks=[Clamp()])
    with pytest.raises(RecordingError, match="clipped by value"):
        trained.trainer.train()
    check_left_alone(trained)


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no option 'resume'; choose from 'about', 'dtype'"):
        Record(tmp_path / "run", resume=3)
    with pytest.raises(TypeError, match=r"pass \['id'\]"):
        Record(tmp_path / "run", tags="id")
    with pytest.raises(RecordingError, match="no column 'label'; choose tags from 'id', 'input_ids'"):
        prepare(tmp_path, record={"tags": ["label"]}).trainer.train()
    with pytest.raises(RecordingError, match="makes a tuple of a batch"):
        prepare(tmp_path, collate=tuple).trainer.train()
    with pytest.raises(RecordingError, match=r"batch of shape \(8, 6\) of 4 examples"):
        prepare(tmp_path, collate=lambda rows: pad([*rows, *rows])).trainer.train()


class Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, ids: bool) -> None:
        self.rows = Rows(ids=ids).rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def test_a_stream_of_examples_needs_ids(tmp_path: Path) -> None:
    train(tmp_path, dataset=Stream(ids=True), max_steps=2)
    assert {i for i, _ in tokens_by(tmp_path, "id")} == {f"row {i}" for i in range(16)}
    with pytest.raises(RecordingError, match="no rows to be numbered"):
        prepare(tmp_path / "without", dataset=Stream(ids=False), max_steps=2).trainer.train()
    train(tmp_path / "untagged", dataset=Stream(ids=False), record={"tags": None}, max_steps=2)
