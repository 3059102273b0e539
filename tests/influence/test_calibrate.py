"""Calibration trains again, compares with what each method predicts, and keeps what it has trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, UnknownName
from dualform.influence.calibrate import METHODS, Calibration, rank_correlation
from tests.influence.trainings import STEPS, TESTS, recipe

matplotlib.use("Agg")
RUNS = 5


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recipe("mlp", "SGD", {"lr": 0.1}).train(tmp_path / "run", STEPS, threads=1, dtype="float64")
    return tmp_path / "run"


def ask(run: Path, calls: list[Any] | None = None, of: Any = None, **options: Any) -> Calibration:
    memory = dualform.load(run, recipe=recipe("mlp", "SGD", {"lr": 0.1}) if of is None else of)
    model = memory.model(memory_model())
    progress = (lambda done, of: None) if calls is None else lambda done, of: calls.append((done, of))
    options = {"runs": RUNS, "drop": 0.2, **options}
    return memory.calibrate(model, TESTS["flat"], progress=progress, **options)


def memory_model() -> torch.nn.Module:
    return recipe().model()


def files(run: Path) -> list[Path]:
    return sorted(run.glob("calibration-*.json"))


def test_each_method_is_compared_with_retraining(run: Path) -> None:
    calibration = ask(run, methods=METHODS)
    rows = {row["method"].partition(" (")[0]: row for row in calibration.table.rows()}
    assert [*rows] == [*METHODS]
    assert rows["exact"]["lds"] > 0.9
    assert rows["exact"]["slope"] == pytest.approx(1, abs=0.15)
    assert rows["fast"]["lds"] > 0.3
    assert all(row["seconds"] > 0 for row in rows.values())
    memory = dualform.load(run, recipe=recipe("mlp", "SGD", {"lr": 0.1}))
    model = memory.model(memory_model())
    generator, ids = torch.Generator().manual_seed(0), memory.visits("2", by="id")["id"]
    for number in range(RUNS):
        without = {"id": ids[torch.randperm(len(ids), generator=generator)[:2]].tolist()}
        influence = memory.influence(model, TESTS["flat"])
        again = memory.retrain(without=without)(TESTS["flat"])
        chosen = torch.nn.functional.one_hot(influence.classes, 3).bool()
        margins = again[chosen] - again.masked_fill(chosen, -torch.inf).logsumexp(1)
        assert_close(calibration.true[number], (margins - influence.outputs).detach())
        predicted = calibration.predicted["fast"][number]
        assert_close(predicted, influence.of(without=without) - influence.outputs)
    assert f"{RUNS} trainings without 18.2% of the examples, 4 outputs" in repr(calibration)
    assert len([axes for axes in calibration.figure().axes if axes.collections]) == len(METHODS)


def test_trainings_are_kept_and_nothing_is_trained_twice(run: Path) -> None:
    first, again, other = list[Any](), list[Any](), list[Any]()
    calibration = ask(run, first, methods=["fast"])
    assert first[-1] == (RUNS, RUNS)
    assert_close(ask(run, again, methods=["contribution"]).true, calibration.true, rtol=0, atol=0)
    assert not again
    assert len(files(run)) == 1
    for different in ({"seed": 1}, {"drop": 0.4}, {"target": torch.tensor([0, 1, 2, 0])}, {"runs": 4}):
        ask(run, other, methods=["contribution"], **different)
    assert len(files(run)) == 5
    assert len(other) == 2 * (RUNS * 3 + 4)
    dualform.load(run).verify()


def test_what_was_trained_before_an_interrupt_is_kept(run: Path) -> None:
    def interrupted(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    memory = dualform.load(run, recipe=recipe("mlp", "SGD", {"lr": 0.1}))
    model, calls = memory.model(memory_model()), list[Any]()
    with pytest.raises(KeyboardInterrupt):
        memory.calibrate(model, TESTS["flat"], runs=RUNS, drop=0.2, progress=interrupted)
    again = ask(run, calls, methods=["fast"])
    assert calls == [(3, RUNS), (4, RUNS), (4, RUNS), (5, RUNS)]
    (file,) = files(run)
    file.unlink()
    assert_close(ask(run, methods=["fast"]).true, again.true, rtol=0, atol=0)


@pytest.mark.parametrize(
    "damaged",
    ["", '{"changes": [[0.1', "[]", "3", "{}", '{"changes": [[1.0]], "seconds": 1}', '{"changes": 3, "seconds": 1}',
     '{"changes": [[1, 2, 3, NaN]], "seconds": 1}', '{"changes": [["a", 1, 2, 3]], "seconds": 1}'],
)  # fmt: skip
def test_a_damaged_file_is_made_anew(run: Path, damaged: str) -> None:
    true = ask(run, methods=["contribution"], runs=3).true
    (file,) = files(run)
    file.write_text(damaged)
    assert_close(ask(run, methods=["contribution"], runs=3).true, true, rtol=0, atol=0)
    assert len(json.loads(file.read_text())["changes"]) == 3


def test_a_run_that_cannot_be_written_to_answers(run: Path) -> None:
    expected = ask(run, methods=["contribution"]).true
    (file,) = files(run)
    file.unlink()
    file.mkdir()  # which nothing can be written over, whoever asks
    assert_close(ask(run, methods=["contribution"]).true, expected, rtol=0, atol=0)


def test_questions_that_make_no_sense(run: Path) -> None:
    for options, reason in (
        ({"drop": 0.0}, "between 0 and 1"), ({"drop": 1.0}, "between 0 and 1"), ({"runs": 2}, "at least 3"),
        ({"runs": True}, "at least 3"), ({"methods": []}, "methods are some of"),
    ):  # fmt: skip
        with pytest.raises(QueryError, match=reason):
            ask(run, **options)
    with pytest.raises(UnknownName, match="no method 'exat'; choose from 'attention'"):
        ask(run, methods=["exat"])
    memory = dualform.load(run, recipe=recipe("mlp", "SGD", {"lr": 0.1}))
    with pytest.raises(QueryError, match="ask a memory without where or without"):
        memory.where(label=1).calibrate(memory_model(), TESTS["flat"])
    with pytest.raises(QueryError, match="calibrate a memory, not its beginning"):
        memory.until(3).calibrate(memory_model(), TESTS["flat"])
    with pytest.raises(dualform.DualformError):
        ask(run, of=replace(recipe("mlp", "SGD", {"lr": 0.1}), seed=7))
    assert not files(run)


def test_ranks_are_compared_output_by_output() -> None:
    true = torch.tensor([[1.0, 4], [2, 3], [3, 2], [4, 1]], dtype=torch.float64)
    assert rank_correlation(true**3, true) == pytest.approx(1)
    assert rank_correlation(true.flip(1), true) == pytest.approx(-1)
    assert rank_correlation(torch.zeros_like(true), true) == 0
    ties = torch.tensor([[1.0, 1], [1, 1], [2, 2], [2, 2]], dtype=torch.float64)
    assert rank_correlation(ties[:, :1], true[:, :1]) == pytest.approx(2 / 5**0.5)
