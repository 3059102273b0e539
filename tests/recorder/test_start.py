"""Starts that fail: nothing stays on the model, nothing is left on the disk that is in the way of the next try."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RunExists, UnexplainedGradient
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
