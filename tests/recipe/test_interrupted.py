"""Whatever ends a training, it goes on to the same end, bit for bit: errors, interrupts, kill -9, another process."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dualform
from tests.recipe import killed
from tests.recipe.trainings import TASKS, assert_same_state, optimizer_of, recipe_of

STEPS, EVERY = 12, 4


class Stopped(Exception):
    """What a user's own code may raise."""


def raised_in_losses(task: str, error: type[BaseException], call: int) -> dict[str, Any]:
    """Losses that raise after the model has run."""
    calls, losses = [0], TASKS[task].losses

    def raising(*args: Any) -> Any:
        computed = losses(*args)
        calls[0] += 1
        if calls[0] == call:
            raise error
        return computed

    def carrying(model: Any, batch: Any, state: Any) -> Any:
        return raising(model, batch, state)

    def plain(model: Any, batch: Any) -> Any:
        return raising(model, batch)

    return {"losses": carrying if task == "carried" else plain}


def raised_between_optimizers(name: str, error: type[BaseException], call: int) -> dict[str, Any]:
    """An error just before the last optimiser steps, when the others have."""

    def make(model: nn.Module) -> Any:
        made = optimizer_of(name, {"lr": 0.1})(model)
        calls = [0]

        def before(*_: Any) -> None:
            calls[0] += 1
            if calls[0] == call:
                raise error

        (made[-1] if isinstance(made, list) else made).register_step_pre_hook(before)
        return made

    return {"optimizer": make}


def raised_in_progress(error: type[BaseException], step: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        if done == step:
            raise error

    return progress


CASES = [
    ("mlp", "SGD", {}), ("conv", "SGD", {}), ("conv", "SGD", {"accumulate": 2}), ("conv", "SGD+Adam", {}),
    ("dropout", "AdamW", {}), ("carried", "AdamW", {}), ("mlp", "SGD+Adam", {}),
]  # fmt: skip


@pytest.mark.parametrize("keep", ["slots", "snapshots"])
@pytest.mark.parametrize(("task", "optimizer", "entries"), CASES)
@pytest.mark.parametrize("where", ["losses", "step", "progress"])
def test_an_interrupt(
    task: str, optimizer: str, entries: dict[str, Any], where: str, keep: str, tmp_path: Path
) -> None:
    recipe, error = recipe_of(task, optimizer, **entries), KeyboardInterrupt if where == "progress" else Stopped
    options: dict[str, Any] = {"every": EVERY, "keep": keep}
    whole = recipe.train(tmp_path / "whole", STEPS, **options)
    changes = {}
    if where == "losses":
        changes = raised_in_losses(task, error, 7)
    elif where == "step":
        changes = raised_between_optimizers(optimizer, error, 7)
    progress = {"progress": raised_in_progress(error, 5)} if where == "progress" else {}
    with pytest.raises(error):
        replace(recipe, **changes).train(tmp_path / "run", STEPS, **options, **progress)
    memory = dualform.load(tmp_path / "run", recipe)
    assert memory.summary()["ended"] == error.__name__
    assert memory.verify().ok  # the last chapter too, which ends where the error came
    assert_same_state(recipe.train(tmp_path / "run", STEPS, **options), whole)
    assert dualform.load(tmp_path / "run", recipe).verify().ok


def test_an_interrupt_before_anything_was_sealed(tmp_path: Path) -> None:
    recipe = recipe_of("conv", "AdamW", {"lr": 0.01})
    whole = recipe.train(tmp_path / "whole", STEPS)
    with pytest.raises(Stopped):
        replace(recipe, **raised_in_losses("conv", Stopped, 1)).train(tmp_path / "run", STEPS)
    assert_same_state(recipe.train(tmp_path / "run", STEPS), whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_any_moment(kills: int, tmp_path: Path) -> None:
    """In another process, from which those that are killed are forked, so that torch is imported once."""
    recipe = killed.recipe()
    whole = recipe.train(tmp_path / "whole", killed.STEPS, **killed.OPTIONS)
    command = [sys.executable, "-m", "tests.recipe.killed", str(tmp_path), str(kills)]
    subprocess.run(command, check=True, timeout=60 + 10 * kills)
    ends = sorted(tmp_path.glob("*.pt"))
    assert ends
    for end in ends:
        torch.testing.assert_close(torch.load(end), dict(whole.state_dict()), rtol=0, atol=0)
        assert dualform.load(end.with_suffix(""), recipe).verify().ok
