"""Every experiment from data to page, on the embedded digits with few steps."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualform
from dualform.companions import make_own, own_inputs, own_recipe
from dualform.errors import QueryError, UnknownName
from dualform.experiments import reproduce as experiments
from dualform.experiments.outcome import Outcome
from dualform.experiments.plan import IMAGE_EXPERIMENTS, ImageOptions
from dualform.experiments.reproduce import reproduce
from dualform.inputs import read_inputs

pytestmark = pytest.mark.slow

LAYERS = ["layer-0", "layer-1", "layer-2"]
FIGURES = {"single": 2 * 4, "joint": 3 * 4, "continual": 3 * 4 + 2}


def run(name: str, out: Path, **options: Any) -> Outcome:
    return reproduce(IMAGE_EXPERIMENTS[name], ImageOptions(**{"dataset": "digits", "steps": 30, **options}), out)


@pytest.fixture(scope="module", params=list(IMAGE_EXPERIMENTS))
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(request.param, tmp_path_factory.mktemp("results") / request.param)


def test_the_page_shows_all_figures_and_is_complete(outcome: Outcome) -> None:
    page = (outcome.out / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r'src="([^"]+)"', page)
    assert len(shown) == FIGURES[outcome.document["experiment"]]
    for name in shown:
        for suffix in (".png", ".pdf"):
            assert (outcome.out / name).with_suffix(suffix).stat().st_size > 1000
    assert not re.search(r"https?://", page)
    markdown = (outcome.out / "results.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((figures/[^)]+)\)", markdown) == shown


def test_the_document_is_on_the_disk_and_certified(outcome: Outcome) -> None:
    stored = json.loads((outcome.out / "results.json").read_text(encoding="utf-8"))
    assert stored == outcome.document
    assert outcome.certified
    assert list(stored["certificates"][0]["relative_error"]) == LAYERS
    assert stored["certificates"][0]["steps_audited"] == sum(stored["steps"])


def test_runs_are_gone_unless_kept(outcome: Outcome) -> None:
    assert sorted(path.name for path in outcome.out.iterdir()) == [
        "figures",
        "index.html",
        "results.json",
        "results.md",
    ]


def test_accuracies_have_the_shape_programs_expect(outcome: Outcome) -> None:
    accuracy, name = outcome.document["accuracy"], outcome.document["experiment"]
    if name == "single":
        leaves = [accuracy]
    elif name == "joint":
        leaves = [accuracy["digits"], accuracy["turned-digits"]]
    else:
        views = ("final", "until_first_task", "without_second_task", "without_first_task")
        leaves = [accuracy[view][task] for view in views for task in ("digits", "turned-digits")]
        # summed up from float16 slots: an input or two on the border may fall to the other side
        measured = outcome.document["after_first_task"]["digits"]["mean"]
        assert accuracy["until_first_task"]["digits"]["mean"] == pytest.approx(measured, abs=1)
    for leaf in leaves:
        assert 0 <= leaf["mean"] <= 100
        assert leaf["std"] is None
        assert leaf["values"] == [leaf["mean"]]


def test_several_seeds_have_a_spread_and_are_kept_if_told(tmp_path: Path) -> None:
    outcome = run("single", tmp_path, seeds=2, steps=5, keep_run=True, index=("3",))
    table = outcome.document["table1"]
    assert list(table) == LAYERS
    for layer in table.values():
        for case in ("wrong_target", "wrong_output", "right"):
            first, second = layer[case]["values"]
            assert layer[case]["mean"] == pytest.approx((first + second) / 2)
            assert layer[case]["std"] == pytest.approx(abs(first - second) / 2**0.5)
    assert outcome.document["cases"][0]["index"] == 3
    for seed in range(2):
        memory = dualform.load(tmp_path / "runs" / f"seed-{seed}")
        assert memory.steps == 5
        assert memory.about["recipe_arguments"] == {
            "experiment": "single", "dataset": "digits", "seed": seed, "steps": [5],
        }  # fmt: skip
        assert (tmp_path / "runs" / f"seed-{seed}" / "inputs.safetensors").is_file()


def test_snapshots_give_the_numbers_of_slots(tmp_path: Path) -> None:
    documents, sizes = [], []
    totals: list[dict[str, np.ndarray]] = []
    for keep in ("slots", "snapshots"):
        document = run("single", tmp_path / keep, keep=keep, keep_run=True, index=("3",)).document
        assert document["certificates"][0]["ok"]
        documents.append(document)
        path = tmp_path / keep / "runs" / "seed-0"
        memory = dualform.load(path, recipe=own_recipe(dualform.load(path)))
        answers = memory.attend(memory.model(make_own(memory)), read_inputs(own_inputs(memory)).inputs[:20])
        sizes.append(memory.summary()["bytes"])
        totals.append({layer: answers[layer].total(by="label")["total"] for layer in LAYERS})
    slots, snapshots = documents
    assert (slots["keep"], snapshots["keep"]) == ("slots", "snapshots")
    for name in ("accuracy", "table1", "table1_valued", "baselines"):
        assert snapshots[name] == slots[name]
    for layer in LAYERS:
        np.testing.assert_allclose(totals[1][layer], totals[0][layer], rtol=1e-6)
    assert sizes[1] < sizes[0] / 5


def test_wrong_wishes_are_known_before_any_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "train", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(QueryError, match="a number below 360"):
        run("single", tmp_path / "out", index=("360",))
    with pytest.raises(UnknownName, match="no data set 'cifar'"):
        run("single", tmp_path / "out", dataset="cifar")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_experiment_leaves_no_run_behind_and_keeps_what_is_done(tmp_path: Path) -> None:
    @contextmanager
    def stage(what: str, steps: int) -> Iterator[Callable[[int], None]]:
        if "network 2 of 2: verifying" in what:
            raise KeyboardInterrupt
        yield lambda step: None

    with pytest.raises(KeyboardInterrupt):
        reproduce(IMAGE_EXPERIMENTS["single"], ImageOptions("digits", seeds=2, steps=5, index=("0",)), tmp_path, stage)
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["seeds"] == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".run")]
