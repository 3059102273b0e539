"""Trainings by recipe whose keys are summed up over the visits to a position, or kept without values."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import dualform
from dualform.errors import NotRecorded, RecipeError

STEPS, ROWS, SPAN = 12, 4, 3
TOKENS = torch.arange(ROWS * SPAN * 3) % 7


def batch(step: int) -> dict[str, torch.Tensor]:
    positions = torch.arange(ROWS)[:, None] * SPAN * 3 + step % 3 * SPAN + torch.arange(SPAN)
    return {"id": positions[:, 0], "token": TOKENS[positions], "position": positions}


def recipe() -> dualform.Recipe:
    return dualform.Recipe(
        model=lambda: nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.05),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(model(batch["token"]).mT, batch["token"].flip(1), reduction="none"),
        tags=["position"],
    )


def totals(path: Path) -> dict[int, list[float]]:
    """The sums of keys at each position."""
    memory = dualform.load(path)
    table = memory.attend({"1": torch.eye(5)})["1"].total(by="position")
    by_position: dict[int, list[float]] = {}
    for row in table.rows():
        by_position.setdefault(row["position"], []).append(row["total"])
    return by_position


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[float]]:
    path = tmp_path_factory.mktemp("whole") / "run"
    recipe().train(path, STEPS, layers="1", dtype="float32")
    return totals(path)


def train(path: Path, steps: int = STEPS, **options: Any) -> nn.Module:
    return recipe().train(path, steps, layers="1", merge="position", dtype="float32", **options)


@pytest.mark.parametrize("options", [{}, {"every": 5}])
def test_sums_are_those_of_every_visit(
    tmp_path: Path, expected: dict[int, list[float]], options: dict[str, int]
) -> None:
    train(tmp_path / "run", **options)
    assert dualform.load(tmp_path / "run").merged_by == "position"
    assert_close(totals(tmp_path / "run"), expected)


def test_an_interrupted_run_goes_on_with_the_sums_it_has(tmp_path: Path, expected: dict[int, list[float]]) -> None:
    def interrupt(step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", progress=interrupt)
    assert dualform.load(tmp_path / "run").steps == 7
    train(tmp_path / "run")
    assert dualform.load(tmp_path / "run").steps == STEPS
    assert_close(totals(tmp_path / "run"), expected)


def test_keys_alone_are_kept_without_values(tmp_path: Path, expected: dict[int, list[float]]) -> None:
    recipe().train(tmp_path / "run", STEPS, layers="1", values=False, dtype="float32")
    memory = dualform.load(tmp_path / "run")
    assert_close(totals(tmp_path / "run"), expected)
    with pytest.raises(NotRecorded):
        memory.without(position=0).weights("1")


def test_keys_alone_are_kept_of_a_training_without_an_example(tmp_path: Path) -> None:
    recipe().train(tmp_path / "run", STEPS, layers="1", values=False)
    memory = dualform.load(tmp_path / "run", recipe=recipe())
    recorded = memory.retrain(without={"id": [0]}, record=tmp_path / "without")
    for one, other in zip(recorded.parameters(), memory.retrain(weights={0: 0.0}).parameters(), strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert dualform.load(tmp_path / "without").summary()["storage"] == memory.summary()["storage"]


@pytest.mark.parametrize("keep", ["snapshots", {"1": "slots"}])
@pytest.mark.parametrize("options", [{"merge": "position"}, {"values": False}])
def test_what_saves_bytes_of_slots_needs_slots(tmp_path: Path, keep: Any, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match='pass keep="slots"'):
        recipe().train(tmp_path / "run", STEPS, keep=keep, **options)
    assert not (tmp_path / "run").exists()
