"""Begin and end: with or without a block; and starts that fail, which leave nothing on the model or in the way."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RecordingError, RunExists, UnexplainedGradient
from dualform.store import InMemory
from tests.recorder.loops import assert_exact, batch, network, record, sgd, step


class RefusingLayer(nn.Linear):
    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("no hooks here")


class RefusingOptimizer(torch.optim.SGD):
    def register_step_post_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("no hooks here")


def refusing_layer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(5, 4), RefusingLayer(4, 3)).double()
    return model, sgd(model)


def refusing_optimizer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = network()
    return model, RefusingOptimizer(model.parameters(), lr=0.1)


@pytest.mark.parametrize("refusing", [refusing_layer, refusing_optimizer])
def test_hooks_that_are_refused(
    tmp_path: Path, refusing: Callable[[], tuple[nn.Sequential, torch.optim.Optimizer]]
) -> None:
    model, optimizer = refusing()
    with pytest.raises(TypeError, match="no hooks here"):
        record(model, optimizer, tmp_path / "run").__enter__()
    assert not any(module._forward_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not (tmp_path / "run").exists()
    good = network()
    with record(good, sgd(good), tmp_path / "run"):  # nobody has locked it
        pass


def test_a_failed_start_keeps_the_run_it_was_to_replace(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        step(model, optimizer)
    with pytest.raises(TypeError, match="no hooks here"):
        record(*refusing_layer(), tmp_path / "run", overwrite=True).__enter__()
    assert_exact(tmp_path / "run", model, 1)


def test_a_first_try_that_fails_is_replaced(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    for where in (tmp_path / "run", InMemory()):
        with pytest.raises(UnexplainedGradient), record(model, optimizer, where):
            optimizer.zero_grad()
            model(batch()[0]).square().sum().backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
        with record(model, optimizer, where):
            step(model, optimizer)
        assert dualform.load(where).steps == 1


def test_a_run_without_steps_is_not_replaced_while_it_is_recorded_to(tmp_path: Path) -> None:
    model, other = network(), network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        with pytest.raises(RunExists, match="another process is recording"):
            record(other, sgd(other), tmp_path / "run").__enter__()
        step(model, optimizer)
    assert_exact(tmp_path / "run", model, 1)


@pytest.mark.parametrize("name", ["notes.txt", "shard-000001.safetensors", "shard-000001.safetensors.tmp"])
def test_a_run_without_steps_is_not_replaced_with_anything_else_in_it(tmp_path: Path, name: str) -> None:
    """A shard that cannot be read may have steps."""
    model = network()
    with record(model, sgd(model), tmp_path / "run"):
        pass
    (tmp_path / "run" / name).write_text("years of work")
    with pytest.raises(RunExists, match="already holds a run"):
        record(model, sgd(model), tmp_path / "run").__enter__()
    assert (tmp_path / "run" / name).read_text() == "years of work"


def test_start_and_stop_are_a_block(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    recorder = record(model, optimizer, tmp_path / "run").start()
    for _ in range(3):
        recorder.tag(label=torch.zeros(6))
        step(model, optimizer)
    recorder.stop()
    recorder.stop()
    assert not any(module._forward_hooks for module in model.modules())
    step(model, optimizer)
    memory = dualform.load(tmp_path / "run")
    assert (memory.steps, memory.verify().ok, recorder.steps) == (3, True, 3)
    assert "complete" in repr(memory)
    for ask in (recorder.sync, partial(recorder.tag, label=1)):
        with pytest.raises(RecordingError, match="recording stopped at step 3: the run has ended"):
            ask()


def test_a_block_that_was_stopped_within(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match="after it"), record(model, optimizer, tmp_path / "run") as recorder:
        step(model, optimizer)
        recorder.stop()
        raise ValueError("after it")
    assert "complete" in repr(assert_exact(tmp_path / "run", model, 1))


def test_stopping_after_an_error_in_the_loop(tmp_path: Path) -> None:
    """The run is complete up to there."""
    model = network()
    optimizer = sgd(model)
    recorder = record(model, optimizer, tmp_path / "run").start()
    step(model, optimizer)
    with pytest.raises(UnexplainedGradient):
        optimizer.step()  # the last gradient is still there
    recorder.stop()
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == 1
    assert "complete" in repr(memory)
    assert not any(module._forward_hooks for module in model.modules())


def test_what_was_never_started_cannot_be_stopped(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(RecordingError, match=r"the recorder is not on: .* call start\(\) first"):
        record(model, sgd(model), tmp_path / "run").stop()


UNSTOPPED = """
import sys, torch, dualform
model = torch.nn.Sequential(torch.nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = dualform.record(model, optimizer, sys.argv[1]).start()
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(6, 5)).square().sum().backward()
    optimizer.step()
    if step == 2:
        recorder.sync()
"""


@pytest.mark.slow
def test_the_interpreter_may_exit_without_a_stop(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", UNSTOPPED, str(tmp_path / "run")],
        check=True,
        cwd=Path(__file__).parents[2],
    )
    memory = dualform.load(tmp_path / "run")
    assert (memory.steps, memory.verify().ok) == (3, True)
