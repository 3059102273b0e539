"""A Lightning Trainer, recorded by a callback: certified, tagged with the rows that were drawn, and resumed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
)
from lightning.pytorch.demos.boring_classes import BoringModel, ManualOptimBoringModel
from lightning.pytorch.demos.transformer import LightningTransformer
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dualform
from dualform.errors import CannotResume, RecordingError, RunExists
from dualform.lightning import Record
from tests.trainers.lightning_modules import GAN, ROWS, AutoEncoder, assert_keys_are_rows, data, loader, trainer

pytestmark = pytest.mark.slow
GOES_ON = pytest.mark.filterwarnings(
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
    "ignore:Checkpoint directory .* exists and is not empty",
)


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def fitted(model: L.LightningModule, *callbacks: L.Callback, seed: int = 0, **options: Any) -> dict[str, Tensor]:
    L.seed_everything(seed, verbose=False)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    held_out = loader(shuffle=False) if isinstance(model, AutoEncoder) else None
    trainer(*callbacks, **options).fit(model, loader(), held_out)
    return parameters(model)


TRAINERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate_grad_batches": 2},
    "clipped": {"gradient_clip_val": 0.1},
    "validated in between": {"val_check_interval": 2},
    "accumulated, clipped, in bfloat16": {
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.1,
        "precision": "bf16-mixed",
    },
    "in float64": {"precision": "64-true"},
    "a few batches": {"limit_train_batches": 3, "max_epochs": 3},
    "loaders made anew": {"reload_dataloaders_every_n_epochs": 1},
}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_training_is_as_without_recording_and_its_tags_are_right(name: str, tmp_path: Path) -> None:
    expected = fitted(AutoEncoder(), **TRAINERS[name])
    model = AutoEncoder()
    record = Record(tmp_path / "run", dtype="float64" if name == "in float64" else "float32")
    trained = fitted(model, record, **TRAINERS[name])
    torch.testing.assert_close(trained, expected, rtol=0, atol=0)

    memory = dualform.load(tmp_path / "run")
    certificate = memory.verify()
    assert certificate.ok, certificate
    assert memory.steps == record.recorder.steps
    assert not record.recorder.notes
    ids = assert_keys_are_rows(memory, model, close=2e-2 if "bfloat16" in name else 1e-5)
    if name == "a few batches":
        assert len(ids) == 3 * 12
    else:
        assert sorted(ids) == sorted([*range(ROWS)] * 2)


@pytest.mark.filterwarnings("ignore:Your `val_dataloader`'s sampler has shuffling enabled")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_with_workers_which_validation_uses_too(persistent: bool, tmp_path: Path) -> None:
    model, record = AutoEncoder(), Record(tmp_path / "run", dtype="float32")
    same = loader(num_workers=2, prefetch_factor=2, persistent_workers=persistent)
    samplers = same.batch_sampler, same.sampler
    trainer(record, val_check_interval=2).fit(model, same, loader() if persistent else same)
    assert (same.batch_sampler, same.sampler) == samplers
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert sorted(assert_keys_are_rows(memory, model)) == sorted([*range(ROWS)] * 2)
    next(iter(same))
    if persistent:  # its workers have begun with the old sampler
        with pytest.raises(RecordingError, match="persistent workers were at work before"):
            trainer(Record(tmp_path / "again")).fit(model, same, loader())


def test_a_gan_with_two_optimisers_that_are_stepped_by_hand(tmp_path: Path) -> None:
    expected, model = fitted(GAN()), GAN()
    record = Record(tmp_path / "run", tags=lambda batch: {"id": record.ids, "label": batch[1]}, dtype="float32")
    torch.testing.assert_close(fitted(model, record), expected, rtol=0, atol=0)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == 24
    rows, labels = data().tensors
    query = torch.randn(1, 4)
    seen = memory.attend(model, query)["generator.0"].top(10_000)
    assert sorted(seen["id"].tolist()) == sorted([*range(ROWS)] * 2)  # once for each row of each batch
    assert seen["label"].tolist() == labels[seen["id"].tolist()].tolist()

    judged = memory.attend(model, rows[:1])["discriminator.0"].top(10_000)
    true = (rows @ rows[0]).tolist()
    real = [row for row, score in zip(judged["id"], judged["score"], strict=True) if abs(true[row] - score) < 1e-5]
    assert len(judged) == 4 * ROWS  # of two epochs: real ones, and such as were made beside them
    assert sorted(real) == sorted([*range(ROWS)] * 2)


@pytest.mark.parametrize("demo", [BoringModel, ManualOptimBoringModel])
def test_modules_of_lightnings_own_that_bring_their_loaders(demo: type[BoringModel], tmp_path: Path) -> None:
    L.seed_everything(2, verbose=False)
    model = demo()
    record = Record(tmp_path / "run", dtype="float32")
    trainer(record, limit_val_batches=2).fit(model)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == 2 * 64
    slots = memory.attend(model, torch.ones(1, 32))["layer"].top(200)
    sums = dict(zip(slots["id"].tolist(), slots["score"].tolist(), strict=True))
    assert [sums[row] for row in slots["id"].tolist()] == slots["score"].tolist()  # each row has one key
    assert len(sums) == len({*sums.values()}) == 64


class Transformer(LightningTransformer):
    def prepare_data(self) -> None:
        """Download no text."""


def test_lightnings_transformer(tmp_path: Path) -> None:
    L.seed_everything(3, verbose=False)
    model = Transformer(vocab_size=17)
    dualform.unfuse(model)
    tokens = torch.randint(17, (6, 9))
    record = Record(tmp_path / "run", tags=lambda batch: {"id": record.ids, "token": batch[0]})
    batches = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=2, shuffle=True)
    trainer(record, max_epochs=1).fit(model, batches)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    layer = memory.attend(model, (tokens[:1, :-1], tokens[:1, 1:]))["model.embedding"]
    weights = layer.top(10_000)
    seen = sorted(zip(weights["id"].tolist(), weights["token"].tolist(), strict=True))
    assert set(seen) <= {(row, int(token)) for row in range(6) for token in tokens[row, :-1]}


@GOES_ON
@pytest.mark.parametrize(
    ("at", "step"),
    [({"every_n_train_steps": 4}, 4), ({"every_n_train_steps": 6}, 6), ({"every_n_epochs": 1}, 6)],
    ids=["in an epoch", "at its last batch", "after one"],
)
def test_a_checkpoint_is_resumed_with_its_recording(at: dict[str, Any], step: int, tmp_path: Path) -> None:
    def going_on(record: Record, checkpoint: Path, model: AutoEncoder) -> None:
        saving = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **at)
        training = trainer(record, saving, max_epochs=3, enable_checkpointing=True)
        training.fit(model, loader(), loader(shuffle=False), ckpt_path=checkpoint)

    saving = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **at)
    fitted(AutoEncoder(), Record(tmp_path / "run"), saving, enable_checkpointing=True)
    last = tmp_path / f"step={step}.ckpt"

    model, record = AutoEncoder(), Record(tmp_path / "run")
    going_on(record, last, model)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == record.recorder.steps == 18
    ids = assert_keys_are_rows(memory, model)
    assert len(ids) >= 3 * ROWS - 2
    assert sorted(ids[-ROWS:]) == list(range(ROWS))
    for name, weight in memory.weights("encoder.0").items():
        torch.testing.assert_close(weight.float(), parameters(model)[name], rtol=1e-4, atol=1e-5)

    weights = torch.load(last)
    weights["state_dict"]["encoder.0.weight"][0] += 0.5
    torch.save(weights, tmp_path / "other.ckpt")
    with pytest.raises(CannotResume, match=r"'encoder.0.weight' is off by"):
        going_on(Record(tmp_path / "run"), tmp_path / "other.ckpt", AutoEncoder())
    assert dualform.load(tmp_path / "run").steps == 18


@GOES_ON
def test_an_interrupt_in_a_step_leaves_all_steps_before_it_and_can_be_resumed(tmp_path: Path) -> None:
    model, record = AutoEncoder(), Record(tmp_path / "run", dtype="float32")
    model.interrupted_at = 8
    when: dict[str, Any] = {"filename": "{step}", "every_n_epochs": 9, "save_on_exception": True}
    with pytest.raises(SystemExit):
        fitted(model, record, ModelCheckpoint(tmp_path, **when), enable_checkpointing=True)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == 8
    for name, weight in memory.weights("decoder.0").items():
        torch.testing.assert_close(weight.float(), parameters(model)[name], rtol=1e-5, atol=1e-6)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    model = AutoEncoder()
    saving = ModelCheckpoint(tmp_path, **when)
    again = trainer(Record(tmp_path / "run", dtype="float32"), saving, enable_checkpointing=True)
    again.fit(model, loader(), loader(shuffle=False), ckpt_path=tmp_path / "step=8.ckpt")
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == 12
    assert_keys_are_rows(memory, model)


def test_an_error_in_a_step_is_the_error_that_is_raised(tmp_path: Path) -> None:
    class Fails(AutoEncoder):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if self.global_step == 3:
                raise ZeroDivisionError("of the user's own")

    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        fitted(Fails(), Record(tmp_path / "run"))
    assert dualform.load(tmp_path / "run").verify().ok
    assert dualform.load(tmp_path / "run").steps == 3


def test_a_second_fit_is_another_training(tmp_path: Path) -> None:
    model, record = AutoEncoder(), Record(tmp_path / "run")
    fitted(model, record)
    with pytest.raises(RunExists):
        fitted(model, record, max_epochs=1)
    assert dualform.load(tmp_path / "run").steps == 12
    replacing = Record(tmp_path / "run", overwrite=True)
    for epochs in (1, 2):
        fitted(model, replacing, max_epochs=epochs)
        assert dualform.load(tmp_path / "run").steps == 6 * epochs
    assert dualform.load(tmp_path / "run").verify().ok


def test_a_fast_dev_run_leaves_no_run(tmp_path: Path) -> None:
    record = Record(tmp_path / "run")
    fitted(AutoEncoder(), record, fast_dev_run=True)
    assert not (tmp_path / "run").exists()
    assert dualform.load(record.recorder.path).verify().ok


class Scheduled(AutoEncoder):
    lr = 0.01

    def configure_optimizers(self) -> Any:  # which has Lightning make its loaders at once
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)]


def test_loaders_that_are_made_early_and_rates_that_are_found_before_recording_begins(tmp_path: Path) -> None:
    model, record = Scheduled(), Record(tmp_path / "run", dtype="float32", overwrite=True)
    for epochs in (1, 2):
        finder = LearningRateFinder(num_training_steps=3, update_attr=True)
        fitted(model, record, finder, default_root_dir=tmp_path, max_epochs=epochs)
        memory = dualform.load(tmp_path / "run")
        assert memory.verify().ok
        assert sorted(assert_keys_are_rows(memory, model)) == sorted([*range(ROWS)] * epochs)


def test_averages_of_weights_are_swapped_in_before_or_after(tmp_path: Path) -> None:
    fitted(AutoEncoder(), Record(tmp_path / "run"), EMAWeightAveraging(decay=0.5))
    assert dualform.load(tmp_path / "run").verify().steps_audited == 12
    with pytest.warns(UserWarning, match="weights were changed after step 12"):
        fitted(AutoEncoder(), EMAWeightAveraging(decay=0.5), Record(tmp_path / "late"))


def test_runs_of_two_callbacks_beside_each_other(tmp_path: Path) -> None:
    records = [Record(tmp_path / name, layers=f"{name}.*") for name in ("encoder", "decoder")]
    model = AutoEncoder()
    fitted(model, *records, ModelCheckpoint(tmp_path), enable_checkpointing=True)
    assert_keys_are_rows(dualform.load(tmp_path / "encoder"), model)
    assert dualform.load(tmp_path / "decoder").verify().steps_audited == 12


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def test_what_cannot_be_numbered_raises_unless_it_is_tagged(tmp_path: Path) -> None:
    stream: DataLoader[Any] = DataLoader(Stream(), batch_size=4)
    model = AutoEncoder()
    with pytest.raises(RecordingError, match="an iterable dataset does not say which examples"):
        trainer(Record(tmp_path / "a")).fit(model, stream, stream)
    trainer(Record(tmp_path / "b", tags=lambda batch: {"label": batch[1]})).fit(model, stream, stream)
    assert dualform.load(tmp_path / "b").verify().ok

    class Two(AutoEncoder):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch["one"], batch_idx)

    both = {"one": loader(), "two": loader()}
    with pytest.raises(RecordingError, match="training takes several loaders at once"):
        trainer(Record(tmp_path / "c")).fit(Two(), both, loader(shuffle=False))


def test_what_is_asked_too_early_or_wrongly(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no option 'resume'; choose from 'about', 'dtype'"):
        Record(tmp_path / "run", resume=3)
    with pytest.raises(RecordingError, match="no recorder before training starts"):
        _ = Record(tmp_path / "run").recorder
    with pytest.raises(RecordingError, match="they are known while training"):
        _ = Record(tmp_path / "run").ids


class OwnIterator(AutoEncoder):
    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor")
def test_what_cannot_be_recorded_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"training_step\(dataloader_iter\) fetches its batches by itself"):
        trainer(Record(tmp_path / "run")).fit(OwnIterator(), loader(), loader(shuffle=False))
    sharded: Any = SimpleNamespace(strategy=FSDPStrategy())  # a trainer that has it needs a GPU
    with pytest.raises(RecordingError, match="FSDPStrategy shards parameters.*strategy='ddp'"):
        Record(tmp_path / "run").setup(sharded, AutoEncoder(), "fit")


OTHER_NAME = """
import sys, warnings
warnings.simplefilter("ignore")
import dualform
assert "dualform.lightning" not in sys.modules and "lightning" not in sys.modules
import pytorch_lightning as pl
import torch
record = dualform.lightning.Record(sys.argv[1])
assert isinstance(record, pl.Callback) and "lightning.pytorch" not in sys.modules

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
loader = torch.utils.data.DataLoader(torch.randn(12, 3), batch_size=4, shuffle=True)
pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[record], **quiet).fit(Model(), loader)
memory = dualform.load(sys.argv[1])
assert memory.verify().ok and memory.steps == 6 and "id" in memory.tags
"""


def test_pytorch_lightning_is_recorded_by_the_same_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_NAME, str(tmp_path / "run")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


TWO_PROCESSES = """
import sys
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
import dualform
from tests.trainers.lightning_modules import AutoEncoder, loader, trainer

if __name__ == "__main__":
    place, (epochs, *checkpoint) = sys.argv[1], sys.argv[2:]
    L.seed_everything(0)
    record = dualform.lightning.Record(place + "/run", dtype="float32")
    saving = ModelCheckpoint(place, filename="{step}", save_top_k=-1)
    two = trainer(record, saving, strategy="ddp", devices=2, max_epochs=int(epochs), enable_checkpointing=True)
    two.fit(AutoEncoder(), loader(), loader(shuffle=False), ckpt_path=(checkpoint or [None])[0])
"""


def test_two_processes_record_one_run_and_resume_it(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for arguments in (["1"], ["3", str(tmp_path / "step=3.ckpt")]):
        command = [sys.executable, str(script), str(tmp_path), *arguments]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == 9
    (note,) = memory.notes
    assert "tags go by the shape of a layer's rows" in note
    assert sorted(assert_keys_are_rows(memory, AutoEncoder())) == sorted([*range(ROWS)] * 3)


def test_lightning_that_is_missing_is_told_of_with_its_command() -> None:
    missing = "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None; import dualform; "
    asked = missing + "dir(dualform); dualform.lightning"
    finished = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert "MissingExtra: this needs lightning, which is not installed: pip install 'dualform[lightning]'" in (
        finished.stderr
    )
