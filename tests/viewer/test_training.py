"""Training again in the viewer: one at a time, in the background, and its answers are those of `memory.retrain`."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, RecipeError, Refused
from dualform.recorder.provenance.untouched import untouched
from dualform.viewer.api import Api
from dualform.viewer.opened_run import Companions, open_run
from dualform.viewer.report import ReportInputs, collect
from tests import recipe_runs
from tests.cli.conftest import call
from tests.recipe_runs import LANGUAGE_RECIPE, MODEL, RECIPE, STEPS, digits, language, network, recipe
from tests.viewer import runs
from tests.viewer.runs import asked
from tests.viewer.served import soon
from tests.viewer.test_answers import prepared, run_python

pytestmark = pytest.mark.slow

DIGITS = Companions(model=MODEL, recipe=RECIPE)
NINES: list[dict[str, Any]] = [{"label": [9]}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("run") / "digits")


@pytest.fixture
def api(trained: Path) -> Iterator[Api]:
    yield from prepared(trained, DIGITS)


def state(api: Api) -> dict[str, Any]:
    training = asked(api, "jobs", {})["training"]
    assert isinstance(training, dict)
    return training


def ended(api: Api) -> bool:
    return all(job["done"] for job in asked(api, "jobs", {})["jobs"])


def train(api: Api, sets: list[dict[str, Any]]) -> None:
    asked(api, "train", {"mute": sets})
    until_ended(api)


def until_ended(api: Api) -> None:
    soon(lambda: ended(api))


def until_held(api: Api) -> None:
    soon(lambda: (state(api)["now"] or {}).get("step") == 20)


def test_the_answer_is_that_of_memory_retrain(api: Api) -> None:
    assert asked(api, "run", {})["cannot_train"] is None
    assert state(api)["seconds"] > 0
    with pytest.raises(Refused, match="`train` begins that"):
        asked(api, "retrained", {"input": {"index": 5}, "mute": NINES})
    sets: list[dict[str, Any]] = [{"label": [9]}, {"id": [40, 3]}, {"label": [8], "parity": ["odd"]}]
    train(api, sets)
    answer = asked(api, "retrained", {"input": {"index": 5}, "mute": sets})
    muted = asked(api, "mute", {"input": {"index": 5}, "mute": sets})
    assert (answer["before"], answer["muted"]) == (muted["before"], muted["after"])
    memory = dualform.load(api.run.memory.path, recipe=recipe())
    model = memory.retrain(without=sets)
    assert api.run.inputs is not None
    expected = torch.softmax(model(api.run.inputs.row(5)), dim=1)[0].detach()
    assert_close(torch.tensor(answer["again"]["probabilities"]), expected)
    assert answer["again"]["predicted"] == int(expected.argmax())
    assert answer["steps"] == STEPS
    assert_close(run_python(answer)["probabilities"][0], expected)
    assert_close(
        run_python(muted)["probabilities"][0], torch.tensor(answer["muted"]["probabilities"]), rtol=1e-3, atol=1e-4
    )


def test_what_was_trained_is_kept_in_whatever_order_it_is_asked_for(api: Api) -> None:
    train(api, [{"id": [40, 3]}, {"label": [9]}])
    for sets in ([{"label": [9]}, {"id": [3, 40]}], [{"id": [40, 3]}, {"label": [9]}]):
        asked(api, "train", {"mute": sets})
        assert ended(api)  # nothing has begun
        asked(api, "retrained", {"input": {"index": 5}, "mute": sets})
    assert len(state(api)["retrained"]) == 1


def test_others_are_answered_and_wait_for_nothing_while_it_trains(trained: Path, held: threading.Event) -> None:
    for api in prepared(trained, DIGITS):
        of = {"input": {"index": 5}, "mute": NINES}
        before = asked(api, "mute", of)
        asked(api, "train", {"mute": NINES})
        until_held(api)
        job = asked(api, "jobs", {})["jobs"][-1]
        assert (job["name"], job["done"], job["share"]) == ("train", False, pytest.approx(20 / STEPS))
        now = state(api)["now"]
        assert (now["mute"], now["steps"], now["failed"]) == (NINES, STEPS, None)
        with pytest.raises(Refused) as refused:
            asked(api, "retrained", of)
        assert (refused.value.status, refused.value.job) == (503, "train")
        with pytest.raises(Refused, match="one training at a time"):
            asked(api, "train", {"mute": [{"label": [8]}]})
        assert asked(api, "mute", of) == before
        assert asked(api, "spotlight", {"input": {"index": 5}, "layer": "0"})["top"]
        assert asked(api, "predict", {"input": {"index": 5}, "step": 7})["step"] == 7
        held.set()
        until_ended(api)
        expected = dualform.load(trained, recipe=recipe()).retrain(without={"label": 9})
        assert api.run.inputs is not None
        found = torch.tensor(asked(api, "retrained", of)["again"]["probabilities"])
        assert_close(found, torch.softmax(expected(api.run.inputs.row(5)), dim=1)[0].detach())
        assert not torch.are_deterministic_algorithms_enabled()


def test_a_training_is_stopped(trained: Path, held: threading.Event) -> None:
    for api in prepared(trained, DIGITS):
        asked(api, "train", {"mute": NINES})
        until_held(api)
        asked(api, "train", {"mute": [{"label": [8]}], "stop": True})  # which is not under way
        assert not ended(api)
        asked(api, "train", {"mute": NINES, "stop": True})
        held.set()
        until_ended(api)
        assert (state(api)["now"], state(api)["retrained"]) == (None, [])
        train(api, [{"label": [8]}])
        assert state(api)["retrained"] == [[{"label": [8]}]]


@pytest.mark.parametrize("sets", [[], [{"steps": [0, 5]}], [{"label": [9]}, {"positions": [0, 5], "label": [8]}]])
def test_what_is_no_set_of_examples_is_refused(api: Api, sets: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused, match="nothing to train without" if not sets else "is no set of examples"):
        asked(api, "train", {"mute": sets})


def test_examples_that_there_are_not_are_a_failure(api: Api) -> None:
    train(api, [{"label": [11]}])
    assert "no value of tag 'label': 11" in state(api)["now"]["failed"]
    train(api, NINES)
    assert state(api)["now"] is None


def test_another_recipe_than_that_of_the_run_is_a_failure(trained: Path) -> None:
    for api in prepared(trained, Companions(model=MODEL, recipe="tests.recipe_runs:another")):
        jobs = {job["name"]: job["failed"] for job in asked(api, "jobs", {})["jobs"]}
        assert "is not what" in jobs["timing"]
        train(api, NINES)
        assert "another seed, or another initialisation" in state(api)["now"]["failed"]


def test_a_run_that_cannot_be_trained_again_says_how_to_have_that(trained: Path, tmp_path: Path) -> None:
    bare = Api(open_run(trained, Companions(model=MODEL)), prepare=False)
    assert "pass --recipe PACKAGE:FACTORY" in asked(bare, "run", {})["cannot_train"]
    assert asked(bare, "jobs", {})["training"] is None
    with pytest.raises(Refused, match="pass --recipe"):
        asked(bare, "train", {"mute": NINES})
    loop = runs.pictures(tmp_path / "loop")
    assert "train it by a dualform.Recipe" in str(open_run(loop, runs.PICTURES).cannot_train)
    with pytest.raises(RecipeError, match="was not trained by a recipe"):
        open_run(loop, Companions(model=runs.PICTURES.model, recipe=RECIPE))
    with pytest.raises(QueryError, match="cannot import 'no_such_package'"):
        open_run(trained, Companions(recipe="no_such_package:recipe"))
    assert "cannot import 'no_such_package'" in call("view", trained, "--recipe", "no_such_package:recipe").stderr


def test_a_run_without_slots_is_shown_by_its_recipe(tmp_path: Path) -> None:
    path = digits(tmp_path / "run", steps=20, keep="snapshots")
    for api in prepared(path, DIGITS):
        assert asked(api, "spotlight", {"input": {"index": 5}, "layer": "0"})["top"]
        train(api, NINES)
        answer = asked(api, "retrained", {"input": {"index": 5}, "mute": NINES})
        run_python(answer)


def test_tokens_are_those_of_muting(tmp_path: Path) -> None:
    for api in prepared(language(tmp_path / "run"), Companions(recipe=LANGUAGE_RECIPE)):
        sets: list[dict[str, Any]] = [{"id": [0, 8]}]
        of = {"input": {"prompt": "the wolf"}, "mute": sets}
        train(api, sets)
        answer = asked(api, "retrained", of)
        names = [[entry["token"] for entry in answer[which]["expected"]] for which in ("before", "muted", "again")]
        assert names[0] == names[1] == names[2]
        probabilities = run_python(answer)["probabilities"][0]
        for entry in answer["again"]["expected"]:
            expected = float(probabilities[recipe_runs.VOCABULARY.index(entry["token"])])
            assert entry["probability"] == pytest.approx(expected, rel=1e-4)
        with pytest.raises(Refused, match="is no set of examples"):
            asked(api, "train", {"mute": [{"positions": [0, 50]}]})


def test_reports_hold_no_trainings(api: Api) -> None:
    train(api, NINES)
    answers = collect(api, ReportInputs(indices=[3]))
    assert not any(key.startswith(("train", "retrained")) for key in answers)


def test_the_last_models_are_kept(api: Api) -> None:
    for number in range(9):
        train(api, [{"id": [number]}])
    assert len(state(api)["retrained"]) == 8
    with pytest.raises(Refused, match="was not trained again"):
        asked(api, "retrained", {"input": {"index": 5}, "mute": [{"id": [0]}]})


def test_random_numbers_that_others_draw_change_nothing(tmp_path: Path) -> None:
    """An experiment sets random numbers back when it ends; a step that is being taken may not notice."""
    others: list[threading.Thread] = []

    def losses(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        first = torch.rand(32)
        if interrupting:
            begun = threading.Event()
            others.append(threading.Thread(target=experiment, args=[begun]))
            others[-1].start()
            begun.wait(0.1)
        weights = first + torch.rand(32)
        return weights * torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"], reduction="none")

    def experiment(begun: threading.Event) -> None:
        with untouched(other, evaluating=True):
            torch.rand(7)
            begun.set()
            time.sleep(0.02)

    interrupting, plain, other = False, recipe(), network()
    drawn = replace(plain, losses=losses)
    expected = drawn.train(tmp_path / "run", 6)
    interrupting = True
    again = drawn.train(tmp_path / "again", 6)
    assert_close(dict(again.state_dict()), dict(expected.state_dict()), rtol=0, atol=0)
    for thread in others:
        thread.join()
    assert len(others) == 6
