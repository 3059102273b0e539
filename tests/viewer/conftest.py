"""Trainings that wait until a test has looked at them."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import dualform
from tests import recipe_runs


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Trainings that the viewer begins wait before their twentieth step until this is set."""
    gate, made = threading.Event(), recipe_runs.recipe

    def waiting() -> dualform.Recipe:
        content = made()
        batches = content.batch

        def batch(step: int) -> Any:
            if step == 20 and threading.current_thread().name in ("dualform-train", "dualform-suspects"):
                gate.wait(30)
            return batches(step)

        return replace(content, batch=batch)

    monkeypatch.setattr(recipe_runs, "recipe", waiting)
    yield gate
    gate.set()
