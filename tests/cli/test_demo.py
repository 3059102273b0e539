"""`demo`: as long as it says, by the optimisers it names."""

import inspect
from pathlib import Path

import pytest

from dualform.cli.demo import demo as command
from dualform.experiments import demo
from tests.cli.conftest import call, fails


def test_the_demo_is_as_long_as_it_says() -> None:
    assert inspect.signature(command).parameters["steps"].default == demo.STEPS


def test_the_default_optimiser_is_the_same_everywhere() -> None:
    defaults = {inspect.signature(one).parameters["optimizer"].default for one in (command, demo.run, demo.train)}
    assert defaults == {"sgd"}


def test_help_names_every_optimiser() -> None:
    shown = call("demo", "--help").stdout
    for name in demo.OPTIMIZERS:
        assert name in shown


def test_an_unknown_optimiser_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reason = fails("demo", "--optimizer", "lbfgs")
    assert "no optimiser 'lbfgs'; choose from " in reason
    assert all(repr(name) in reason for name in demo.OPTIMIZERS)
    assert not any(tmp_path.iterdir())
