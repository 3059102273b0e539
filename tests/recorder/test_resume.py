"""A run that goes on after a crash is, bit for bit, the one that was never interrupted."""

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dualform
from benchmarks.contents import contents
from dualform.errors import CannotResume, RunError, RunExists, StorageError
from dualform.store import Run
from tests.recorder.loops import network, record, sgd, step

pytestmark = pytest.mark.slow

STEPS = 12


class Training:
    """A small training whose every random number comes from a seed, so that it can be done again from any step."""

    def __init__(self, make: Callable[[nn.Module], torch.optim.Optimizer] = sgd, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = network(nn.BatchNorm1d(4), nn.ReLU())
        self.optimizer = make(self.model)
        self.examples = torch.randn(8, 5, dtype=torch.float64)
        self.options = options

    def record(self, path: Path, steps: Iterable[int], synced: Iterable[int] = (), **options: Any) -> None:
        """Examples come again, so that keys repeat; some steps are clipped, so that factors are fitted."""
        synced = set(synced)
        with record(self.model, self.optimizer, path, **self.options, **options) as recorder:
            for number in steps:
                assert recorder.steps == number
                chosen = torch.randperm(8, generator=torch.Generator().manual_seed(number))[:6]
                recorder.tag(id=chosen, task="a" if number < 6 else "b", odd=chosen % 2 == 1)
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(self.examples[chosen]), chosen % 3).backward()
                if number % 3:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
                self.optimizer.step()
                if number + 1 in synced:
                    assert recorder.sync() == number + 1
                    self.save(path.with_suffix(f".{number + 1}"))

    def save(self, path: Path) -> None:
        torch.save((self.model.state_dict(), self.optimizer.state_dict()), path)

    def restore(self, path: Path) -> None:
        model, optimizer = torch.load(path)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("at", [4, 8, 12])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (sgd, {}),
        (sgd, {"dtype": "float16"}),
        (sgd, {"dtype": "float32", "values": False}),
        (sgd, {"merge": "id"}),
        (adam, {}),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, make: Callable[[nn.Module], torch.optim.Optimizer], options: dict[str, Any], at: int
) -> None:
    Training(make, **options).record(tmp_path / "whole", range(STEPS), synced=(4, 8, 12))
    Training(make, **options).record(tmp_path / "cut", range(at), synced=(4, 8, 12))
    again = Training(make, **options)
    again.restore(tmp_path / f"cut.{at}")
    again.record(tmp_path / "cut", range(at, STEPS), synced=(4, 8, 12), resume=at)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    certificate = dualform.load(tmp_path / "cut").verify()
    assert certificate.ok or certificate.keys_only


def test_later_slots_are_dropped_and_can_be_other_ones(tmp_path: Path) -> None:
    first = Training()
    first.record(tmp_path / "run", range(STEPS), synced=(4, 8))
    again = Training()
    again.restore(tmp_path / "run.4")
    again.optimizer.param_groups[0]["lr"] = 0.2
    again.record(tmp_path / "run", range(4, 6), resume=4)
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == 6
    assert memory.slots("0") == 36
    assert memory.verify().ok
    assert str(memory).count("complete") == 1


def test_keys_stored_before_a_crash_are_known_again(tmp_path: Path) -> None:
    """The first layer sees 8 examples, however often the run was taken up again."""
    Training().record(tmp_path / "run", range(4), synced=(4,))
    for at in (4, 8):
        again = Training()
        again.restore(tmp_path / f"run.{at}")
        again.record(tmp_path / "run", range(at, at + 4), synced=(at + 4,), resume=at)
    run = Run(tmp_path / "run")
    assert run.slots("0") == 72
    assert sum(shard.key_rows("0") for shard in run.shards) == 8


def test_a_step_that_was_never_sealed(tmp_path: Path) -> None:
    Training().record(tmp_path / "run", range(10), synced=(4, 8))
    before = contents(tmp_path / "run")
    with pytest.raises(CannotResume, match="never sealed at step 5; it can be resumed from 0, 4, 8, 10. Call"):
        Training().record(tmp_path / "run", (), resume=5)
    assert contents(tmp_path / "run") == before  # nothing was dropped


def _momentum(training: Training) -> torch.Tensor:
    weight = training.model[3].weight
    assert isinstance(weight, torch.Tensor)
    found: torch.Tensor = training.optimizer.state[weight]["momentum_buffer"]
    return found


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.model[0].weight.mul_(1.001), "layer '0': the restored '0.weight' is off by 1.0e-03 of the size"),
        (lambda t: t.model[1].weight.add_(1), "layer '1': the restored '1.weight' is off by"),
        (lambda t: t.optimizer.state.clear(), "layer '0': the optimiser's momentum_buffer of '0.bias' is missing"),
        (lambda t: _momentum(t).zero_(), "layer '3': the optimiser's momentum_buffer of '3.weight' is off by 1.0e.00"),
    ],
)
def test_a_state_that_does_not_fit(tmp_path: Path, spoil: Callable[[Training], object], message: str) -> None:
    Training().record(tmp_path / "run", range(8), synced=(4,))
    before = contents(tmp_path / "run")
    again = Training()
    again.restore(tmp_path / "run.4")
    with torch.no_grad():
        spoil(again)
    with pytest.raises(CannotResume, match=message) as raised:
        again.record(tmp_path / "run", range(4, 8), resume=4)
    assert "at step 4 of" in str(raised.value)
    assert contents(tmp_path / "run") == before
    again.restore(tmp_path / "run.4")
    again.record(tmp_path / "run", range(4, 8), resume=4)  # the lock was given back


def test_another_model_another_precision_no_run(tmp_path: Path) -> None:
    Training().record(tmp_path / "run", range(4), synced=(4,))
    with pytest.raises(CannotResume, match=re.escape("was begun with other storage: Storage(dtype='float64'")):
        Training(dtype="float32").record(tmp_path / "run", (), resume=4)
    with pytest.raises(CannotResume, match="was begun with other layers"):
        Training(layers="0").record(tmp_path / "run", (), resume=4)
    with pytest.raises(RunError, match="there is no run at"):
        Training().record(tmp_path / "nowhere", (), resume=4)
    assert not (tmp_path / "nowhere").exists()


def test_a_run_that_is_being_recorded_cannot_be_resumed(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        step(model, optimizer)
        recorder.sync()
        with pytest.raises(RunExists, match="another process is recording"):
            record(model, optimizer, tmp_path / "run", resume=1).__enter__()


def test_a_first_start_that_sealed_nothing_is_no_run_to_be_lost(tmp_path: Path) -> None:
    """Whatever was left behind before the first shard: the same command simply starts."""
    run = tmp_path / "run"
    Training().record(run, ())
    for number in (0, 1):
        (run / f"shard-00000{number}.safetensors").unlink()
    for name in ("manifest.json.tmp", "shard-000000.safetensors.tmp"):
        (run / name).write_bytes(b"{")
    Training().record(run, range(2))
    assert dualform.load(run).steps == 2
    assert {one.name for one in run.iterdir()} >= {"manifest.json", "writer.lock"}
    with pytest.raises(RunExists, match="resume=STEP to go on with it"):
        Training().record(run, range(2))
    Training().record(run, range(1), overwrite=True)
    assert dualform.load(run).steps == 1


def test_a_manifest_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(RunExists, match="is not empty and not a dualform run"):
        Training().record(tmp_path, range(2))
    assert (tmp_path / "manifest.json").read_text() == '{"name": "a web page"}'


def test_a_damaged_key_is_found_before_anything_is_dropped(tmp_path: Path) -> None:
    Training().record(tmp_path / "run", range(8), synced=(4,))
    shard = tmp_path / "run" / "shard-000001.safetensors"
    content, keys = shard.read_bytes(), Run(tmp_path / "run").shards[1]["slots/0/keys"].tobytes()
    shard.write_bytes(content.replace(keys, bytes(len(keys))))
    again = Training()
    again.restore(tmp_path / "run.4")
    with pytest.raises(RunError, match="shard-000001.safetensors is damaged: the checksum of slots/0/keys"):
        again.record(tmp_path / "run", range(4, 8), resume=4)
    assert Run(tmp_path / "run").steps == 8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons say what this test is about
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_cannot_go_on_with_a_recording(tmp_path: Path) -> None:
    """Neither the lock nor the writer's thread are there; waiting for them would never end."""
    model = network()
    with record(model, sgd(model), tmp_path / "run") as recorder:
        child = os.fork()
        if not child:
            try:
                recorder.sync()
            except StorageError as error:
                os._exit(17 if "not by one forked from it" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        recorder.sync()


def test_a_directory_removed_while_recording(tmp_path: Path) -> None:
    """And another run in its place is left alone."""
    model = network()
    optimizer = sgd(model)
    with (
        pytest.raises(StorageError, match="the directory was removed while it was recorded to"),
        record(model, optimizer, tmp_path / "run") as recorder,
    ):
        step(model, optimizer)
        shutil.rmtree(tmp_path / "run")
        Training().record(tmp_path / "run", range(2))
        step(model, optimizer)
        recorder.sync()
    assert dualform.load(tmp_path / "run").verify().ok
