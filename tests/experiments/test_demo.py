"""The demo, with few steps: from data to figures."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import dualform
from dualform.cli import app
from dualform.errors import UnknownName
from dualform.experiments import demo

pytestmark = pytest.mark.slow

STEPS = "20"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo writes to runs/demo of the current directory. Laying figures out is slow: one digit will do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "select_digits", partial(demo.select_digits, count=1))
    return tmp_path


def test_training_repeats_itself_and_leaves_global_state_alone(tmp_path: Path) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    once, again = (demo.train(tmp_path / name, steps=5) for name in ("once", "again"))
    for one, other in zip(once.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", demo.OPTIMIZERS)
def test_every_optimiser_is_exact_and_its_logits_add_up(tmp_path: Path, name: str) -> None:
    trained = demo.train(tmp_path / "run", optimizer=name.upper(), steps=12)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    for one in demo.explain(memory, trained, [0, 5]):
        parts = one.contributions
        with torch.no_grad():
            logit = trained.model(trained.inputs[one.index])[one.predicted]
        assert parts.target == one.predicted
        assert parts.logit == pytest.approx(float(logit), abs=1e-4)
        for table, column in ((parts.totals, "total"), (parts.digits, "contribution")):
            assert parts.initial + table[column].sum() == pytest.approx(parts.logit, abs=1e-4)


def test_the_names_are_those_of_torch(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.zeros(1, 1))
    for name, make in demo.OPTIMIZERS.items():
        assert type(make([weight])).__name__.lower() == name


def test_an_unknown_optimiser_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no optimiser 'Lion'; choose from 'sgd', 'adam'"):
        demo.train(tmp_path / "run", optimizer="Lion", steps=1)
    assert not (tmp_path / "run").exists()


def test_digits_speak_for_a_class_or_against_it(tmp_path: Path) -> None:
    trained = demo.train(tmp_path / "run", steps=12)
    memory = dualform.load(tmp_path / "run")
    (one,) = demo.explain(memory, trained, [3])
    parts, layer = one.contributions, memory.attend(trained.model, trained.inputs[3:4])["output"]
    best, worst = parts.highest(4), parts.lowest(4)
    wanted = layer.contribution(one.predicted).top(4, per="id")
    assert best["id"].tolist() == wanted["id"].tolist()
    np.testing.assert_allclose(best["contribution"], wanted["score"], rtol=1e-5)
    against = torch.zeros(10)
    against[one.predicted] = -1
    negated = layer.contribution(against).top(4, per="id")
    assert worst["id"].tolist() == negated["id"].tolist()
    np.testing.assert_allclose(worst["contribution"], -negated["score"], rtol=1e-5)
    assert best["contribution"].min() > 0 > worst["contribution"].max()
    attention = dict(zip(*(layer.top(5, per="id")[name].tolist() for name in ("id", "score")), strict=True))
    for row in parts.digits.rows():
        if row["id"] in attention:
            assert row["attention"] == pytest.approx(attention.pop(row["id"]), rel=1e-4)
    assert not attention


def test_a_run_knows_its_model_and_inputs(tmp_path: Path) -> None:
    trained = demo.train(tmp_path / "run", steps=5)
    memory = dualform.load(tmp_path / "run")
    assert memory.about["model"] == "dualform.experiments.demo:network"
    saved = load_file(tmp_path / "run" / memory.about["inputs"])
    torch.testing.assert_close(saved["inputs"], trained.inputs)
    torch.testing.assert_close(saved["training_images"], trained.digits.train.raw)
    assert memory.attend(memory.model(demo.network()), saved["inputs"][:1]).note is None


def test_chosen_takes_a_mistake_first_then_new_classes() -> None:
    labels = torch.tensor([4, 4, 7, 1, 2])
    assert demo.select_digits(torch.tensor([4, 4, 1, 1, 2]), labels) == [2, 0, 3]
    assert demo.select_digits(labels, labels) == [0, 2, 3]
    assert demo.select_digits(labels + 1, labels) == [0]


def test_demo_tells_its_story_and_leaves_everything_on_disk(here: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--steps", STEPS])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for words in ("dual = primal", "test accuracy", "hidden1", "predicted", "dualform verify runs/demo", "visits"):
        assert words in result.stdout
    for words in ("trained by sgd", "to the logit of class", "initial part", "the sum", "most for", "most against"):
        assert words in result.stdout
    for name in ("spotlight.png", "contribution.png", "spotlight.pdf", "inputs.safetensors", "manifest.json"):
        assert (here / "runs/demo" / name).is_file()
    assert dualform.load("runs/demo").verify().ok


def test_demo_as_json_is_one_document(here: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--steps", STEPS, "--out", "mine", "--optimizer", "AdamW", "--json"])
    document = json.loads(result.stdout)
    assert document["certificate"]["ok"]
    assert 0 <= document["accuracy"] <= 1
    assert all(Path(file).is_file() for file in document["files"])
    one = document["digits"][0]
    assert one["predicted"] != one["true"]  # after so few steps
    assert len(one["layers"]["output"]["top"]) == 5
    assert len(one["layers"]["output"]["totals"]) == 10
    assert document["optimizer"] == "adamw"
    parts = one["contribution"]
    assert (parts["layer"], parts["target"]) == ("output", one["predicted"])
    total = sum(row["total"] for row in parts["totals"])
    assert parts["initial"] + total == pytest.approx(parts["logit"], abs=1e-4)
    assert parts["for"][0]["contribution"] > 0 > parts["against"][0]["contribution"]
    assert Path("mine/spotlight.pdf").read_bytes().count(b"/Type /Page ") == 2  # attention and contribution of a digit


def test_demo_replaces_only_its_own_run_in_its_own_place(here: Path) -> None:
    demo.train("runs/demo", steps=2)
    demo.train("mine", steps=2)
    refused = CliRunner().invoke(app, ["demo", "--steps", "3", "--out", "mine"])
    assert refused.exit_code == 1
    assert "mine is not empty" in refused.stderr
    assert dualform.load("mine").steps == 2
    assert CliRunner().invoke(app, ["demo", "--steps", "3", "--out", "mine", "--overwrite"]).exit_code == 0
    assert dualform.load("mine").steps == 3
    assert CliRunner().invoke(app, ["demo", "--steps", "3"]).exit_code == 0
    assert dualform.load("runs/demo").steps == 3


@pytest.mark.parametrize("extra", [[], ["--overwrite"]])
def test_demo_never_replaces_what_is_not_a_run(here: Path, extra: list[str]) -> None:
    (here / "runs/demo").mkdir(parents=True)
    (here / "runs/demo/thesis.txt").write_text("years of work")
    result = CliRunner().invoke(app, ["demo", "--steps", "2", *extra])
    assert result.exit_code == 1
    assert "runs/demo is not empty" in result.stderr
    assert (here / "runs/demo/thesis.txt").read_text() == "years of work"


def test_demo_does_not_replace_a_stranger_in_its_place(here: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with dualform.record(model, torch.optim.SGD(model.parameters(), lr=0.1), "runs/demo"):
        pass
    result = CliRunner().invoke(app, ["demo", "--steps", "2"])
    assert result.exit_code == 1
    assert "--overwrite" in result.stderr
