"""`retrain`: it agrees with the library, writes whole files or none, and says what is wrong with a question."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import dualform
from dualform.cli.retrain import read_tags
from dualform.companions import named_recipe, own_recipe
from dualform.errors import QueryError, UnknownName
from dualform.inputs import INPUTS, read_inputs
from tests.cli.conftest import call, fails, record
from tests.recipe_runs import RECIPE, STEPS, digits, network, recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("run") / "digits")


def asked(run: Path, *more: object, named: str = RECIPE) -> list[object]:
    return ["retrain", run, "--recipe", named, *more]


def share_right(model: torch.nn.Module, run: Path) -> float:
    inputs = read_inputs(run / INPUTS)
    assert inputs.labels is not None
    return float((model(inputs.inputs).argmax(dim=1) == inputs.labels).float().mean())


@pytest.mark.parametrize(
    ("options", "asked_for"),
    [
        (["--without", "label=9"], {"without": {"label": [9]}}),
        (["--without", "id=3,17", "--without", "id=40"], {"without": {"id": [3, 17, 40]}}),
        (["--without", "label=9", "--without", "parity=odd"], {"without": {"label": [9], "parity": ["odd"]}}),
        (["--where", "label=0,1,2,3"], {"where": {"label": [0, 1, 2, 3]}}),
    ],
)
def test_it_agrees_with_the_library(trained: Path, options: list[str], asked_for: dict[str, Any]) -> None:
    answer = json.loads(call(*asked(trained, *options, "--json")).stdout)
    memory = dualform.load(trained, recipe=recipe())
    steps: list[tuple[int, int]] = []
    again = memory.retrain(**asked_for, progress=lambda step, of: steps.append((step, of)))
    muted = getattr(memory, *asked_for)(**next(iter(asked_for.values()))).model(network())
    before = memory.model(network())
    assert {name: answer[name] for name in asked_for} == asked_for
    assert answer["steps"] == len(steps) == steps[-1][1]
    assert answer["accuracy"] == {
        name: pytest.approx(share_right(model, trained))
        for name, model in {"before": before, "muted": muted, "again": again}.items()
    }
    for layer in ("0", "2"):
        was, now = (
            torch.cat([model.get_parameter(f"{layer}.{name}").detach().flatten() for name in ("weight", "bias")])
            for model in (before, again)
        )
        assert answer["moved"][layer] == pytest.approx(float((now - was).norm() / was.norm()), rel=1e-4)
    tests = read_inputs(trained / INPUTS).inputs
    assert answer["changed"]["again"] == int((again(tests).argmax(1) != before(tests).argmax(1)).sum())
    assert answer["inputs"] == len(tests)


def test_it_prints_tables_for_people_and_nothing_on_standard_error(trained: Path) -> None:
    result = call(*asked(trained, "--without", "label=9"))
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (f"trained again without label 9: {STEPS} steps in", "moved, of its norm", "of 360 test inputs"):
        assert words in result.stdout
    for words in ("the run's model", "muted", "trained again", "predictions changed"):
        assert words in result.stdout


def test_what_was_trained_is_saved_and_recorded(trained: Path, tmp_path: Path) -> None:
    file, run = tmp_path / "again.safetensors", tmp_path / "runs" / "again"
    result = call(*asked(trained, "--without", "label=9", "--save", file, "--record", run))
    assert result.exit_code == 0, result.output
    assert str(file) in result.stdout
    expected = dualform.load(trained, recipe=recipe()).retrain(without={"label": 9})
    assert_close(load_file(file), dict(expected.state_dict()), rtol=0, atol=0)
    recorded = dualform.load(run)
    assert recorded.steps == STEPS
    assert_close(dict(recorded.model(network()).state_dict()), dict(expected.state_dict()), rtol=0, atol=0)
    assert read_inputs(run / INPUTS).labels is not None
    assert sorted(path.name for path in run.parent.iterdir()) == ["again"]

    kept = file.read_bytes()
    assert "replace it with --overwrite" in fails(*asked(trained, "--without", "label=8", "--save", file))
    assert "choose another directory" in fails(*asked(trained, "--without", "label=8", "--record", run))
    assert file.read_bytes() == kept
    assert call(*asked(trained, "--without", "label=8", "--save", file, "--overwrite")).exit_code == 0
    assert file.read_bytes() != kept


def test_what_a_run_says_of_itself_is_copied_where_it_is_still_so(tmp_path: Path) -> None:
    (tmp_path / "secret.npy").write_bytes(b"")
    about = {"inputs": "../secret.npy", "recipe": "os:getcwd", "recipe_arguments": {}, "class_names": ["a"]}
    recipe().train(tmp_path / "run", 4, threads=1, about=about)
    result = call(*asked(tmp_path / "run", "--without", "label=9", "--record", tmp_path / "new" / "again"))
    assert result.exit_code == 0, result.output
    again = dualform.load(tmp_path / "new" / "again")
    assert again.about == {"inputs": "../secret.npy", "class_names": ["a"]}  # the recipe has nines in it
    assert not list((tmp_path / "new").glob("**/*.npy"))


def test_an_interrupt_leaves_nothing(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = recipe().batch

    def interrupted(step: int) -> Any:
        if step == STEPS // 2:
            raise KeyboardInterrupt
        return batches(step)

    monkeypatch.setattr("tests.recipe_runs.recipe", lambda: replace(recipe(), batch=interrupted))
    result = call(
        *asked(trained, "--without", "label=9", "--save", tmp_path / "a.safetensors", "--record", tmp_path / "again")
    )
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "dualform: interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "--without label=9; or --where label=3"),
        (["--without", "label=9", "--where", "label=3"], "--without label=9; or --where label=3"),
        (["--without", "label"], "such as label=9 or id=3,17,40, not 'label'"),
        (["--without", "lable=9"], "no tag 'lable'; choose from 'id', 'label', 'parity'"),
        (["--without", "label=nine"], "a value of tag 'label' is a whole number, not 'nine'"),
        (["--without", "label=11"], "no value of tag 'label': 11"),
        (["--where", "parity=neither"], "no value of tag 'parity': 'neither'; choose from 'even', 'odd'"),
        (["--without", "label=9", "--save", "again.pt"], "--save writes .safetensors, not again.pt"),
        (["--without", "label=9", "--save", "no/such/again.safetensors"], "there is no directory no/such"),
        (["--without", "label=9", "--data", "here"], "--data is for the recipe that the run itself names"),
        (["--without", "label=9", "--input", "none.npy"], "there is no file none.npy"),
    ],
)
def test_what_cannot_be_asked(trained: Path, options: list[str], reason: str) -> None:
    assert reason in fails(*asked(trained, *options))


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("tests.recipe_runs", "--recipe must be PACKAGE:FACTORY"),
        ("no_such_package:recipe", "cannot import 'no_such_package'"),
        ("tests.recipe_runs:recipes", "no factory in tests.recipe_runs called 'recipes'; choose from"),
        ("tests.recipe_runs:nothing", "must make a dualform.Recipe, it made a int"),
        ("tests.recipe_runs:digits", "does not make a recipe: TypeError"),
    ],
)
def test_recipes_that_are_none(trained: Path, named: str, reason: str) -> None:
    assert reason in fails(*asked(trained, "--without", "label=9", named=named))


def test_a_run_without_a_recipe_of_its_own(trained: Path, tmp_path: Path) -> None:
    assert "pass --recipe PACKAGE:FACTORY" in fails("retrain", trained, "--without", "label=9")
    loop = record(tmp_path / "loop")
    assert "was not trained by a recipe" in fails(*asked(loop, "--without", "label=1"))
    strange = record(tmp_path / "strange", about={"recipe": "os:getcwd"})
    with pytest.raises(QueryError, match="pass --recipe PACKAGE:FACTORY.*os:getcwd"):
        own_recipe(dualform.load(strange))


def test_values_are_read_by_the_kind_of_their_tag() -> None:
    kinds = {"id": "int", "size": "float", "seen": "bool", "day": "string"}
    written = ["id=3,-4", "size=0.5", "seen=true,False", "day=1, monday"]
    assert read_tags(written, kinds, "--without") == {
        "id": [3, -4], "size": [0.5], "seen": [True, False], "day": ["1", "monday"],
    }  # fmt: skip
    for wrong in ("id=3.5", "size=small", "seen=1"):
        with pytest.raises(QueryError, match=f"a value of tag '{wrong.partition('=')[0]}' is "):
            read_tags([wrong], kinds, "--without")
    with pytest.raises(UnknownName, match="choose from 'id', 'size', 'seen', 'day'"):
        read_tags(["ids=3"], kinds, "--without")


def test_a_recipe_is_named_as_a_model_is() -> None:
    assert named_recipe(RECIPE).tags == ["label", "parity"]


def test_several_sets_of_examples_are_left_out_together(trained: Path) -> None:
    memory = dualform.load(trained, recipe=recipe())
    both, one = ({"without": sets} for sets in ([{"label": 8}, {"label": [9]}], {"label": [8, 9]}))
    expected = memory.retrain(**one).state_dict()  # type: ignore[arg-type]
    assert_close(dict(memory.retrain(**both).state_dict()), dict(expected), rtol=0, atol=0)  # type: ignore[arg-type]
    assert memory.seconds_to_retrain() > 0
    empty: list[Any] = [[], {}, [{}]]
    for nothing in empty:
        with pytest.raises(QueryError, match="says which examples by their tags"):
            memory.retrain(without=nothing)
