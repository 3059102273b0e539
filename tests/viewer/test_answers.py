"""Answers of the viewer: the Python in each of them makes the same, and what is told is what was recorded."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, Refused, UnknownName
from dualform.experiments.language.training import MERGED
from dualform.inputs import INPUTS, read_inputs, save_inputs
from dualform.viewer.api import Api
from dualform.viewer.opened_run import Companions, open_run
from tests.viewer import runs
from tests.viewer.runs import asked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    yield from prepared(runs.pictures(tmp_path_factory.mktemp("run") / "pictures"), runs.PICTURES)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    yield from prepared(runs.language(tmp_path_factory.mktemp("run") / "language"), Companions())


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    yield from prepared(runs.language(tmp_path_factory.mktemp("run") / "merged", MERGED), Companions())


def prepared(path: Path, named: Companions) -> Iterator[Api]:
    api = Api(open_run(path, named), prepare=False)
    api.jobs.run()
    yield api
    api.close()


def run_python(answer: dict[str, Any]) -> dict[str, Any]:
    """The names that an answer's own lines make."""
    names: dict[str, Any] = {}
    exec(compile(answer["python"], "answer", "exec"), names)
    return names


def test_the_run_at_a_glance(pictures: Api) -> None:
    run = asked(pictures, "run", {})
    assert (run["name"], run["kind"], run["steps"], run["snapshots"]) == ("pictures", "images", 24, [0, 6, 12, 18, 24])
    assert run["classes"][1] == {"task": "triangles", "label": 1, "name": "small"}
    assert [(task["name"], task["first_step"], task["last_step"]) for task in run["tasks"]] == [
        ("triangles", 0, 11),
        ("stripes", 12, 23),
    ]
    assert run["tasks"][1]["classes"] == (3, 4, 5)
    assert run["outputs"] == runs.TASKS
    assert run["per"] == ["id"]
    assert not run["cannot"]
    assert not run["missing"]


def test_jobs_end_with_a_certificate_and_accuracies(pictures: Api) -> None:
    found = asked(pictures, "jobs", {})
    assert [(job["name"], job["done"], job["failed"]) for job in found["jobs"]] == [
        (name, True, None) for name in ("spotlight", "mute", "accuracy", "certificate")
    ]
    assert found["certificate"]["ok"]
    assert found["accuracy"]["steps"][-1] == 24
    assert found["accuracy"]["inputs"] == {"triangles": 6, "stripes": 6}
    model, inputs = pictures.run.network, pictures.run.inputs
    assert model is not None
    assert inputs is not None
    right = (model(inputs.inputs).argmax(dim=1) == inputs.labels).float()
    assert [found["accuracy"]["tasks"][task][-1] for task in runs.TASKS] == [
        pytest.approx(float(part.mean())) for part in right.split(6)
    ]
    made = run_python(found["accuracy"])["accuracies"]
    assert list(found["accuracy"]["tasks"].values()) == [pytest.approx(made[task]) for task in (0, 1)]
    run_python(found["certificate"])
    run_python(asked(pictures, "run", {}))


def test_inputs_come_mistakes_first_and_by_filters(pictures: Api) -> None:
    every = asked(pictures, "inputs", {})
    right = [one["predicted"] == one["label"] for one in every["inputs"]]
    assert every["total"] == 12
    assert right == sorted(right)
    wrong = asked(pictures, "inputs", {"outcome": "wrong"})
    assert wrong["inputs"] == every["inputs"][: wrong["total"]]
    of_class = asked(pictures, "inputs", {"class": 4})["inputs"]
    assert sorted(one["index"] for one in of_class) == [7, 10]
    assert {(one["task"], one["label"]) for one in of_class} == {("stripes", 1)}
    assert [one["index"] for one in asked(pictures, "inputs", {"search": "11"})["inputs"]] == [11]
    assert asked(pictures, "inputs", {"start": 5, "count": 2})["inputs"] == every["inputs"][5:7]


def test_pixels_are_the_images(pictures: Api) -> None:
    (one,) = asked(pictures, "inputs", {"search": "11"})["inputs"]
    images = pictures.run.inputs.images  # type: ignore[union-attr]
    assert images is not None
    shown = np.frombuffer(base64.b64decode(one["pixels"]), np.uint8)
    low, high = images.min().item(), images.max().item()
    expected = ((images[11].double() - low) / (high - low) * 255).round()
    assert shown.tolist() == expected.tolist()


@pytest.mark.parametrize("step", [None, 0, 12, 24, 7])
def test_predictions_and_the_python_that_makes_them(pictures: Api, step: int | None) -> None:
    answer = asked(pictures, "predict", {"input": {"index": 8}, "step": step})
    assert (answer["label"], answer["task"], answer["class"]) == (2, "stripes", 5)
    assert answer["predicted"] == int(np.argmax(answer["probabilities"]))
    assert_close(torch.tensor([answer["probabilities"]]), run_python(answer)["probabilities"])


def test_history_is_the_model_at_each_stop(pictures: Api) -> None:
    answer = asked(pictures, "history", {"input": {"index": 3}})
    assert {0, 6, 12, 18, 24} <= set(answer["steps"])
    expected = torch.cat(run_python(answer)["probabilities"])
    assert_close(torch.tensor(answer["probabilities"]), expected)
    last = asked(pictures, "predict", {"input": {"index": 3}})["probabilities"]
    assert answer["probabilities"][-1] == pytest.approx(last, rel=1e-4)


@pytest.mark.parametrize("per", ["id", None])
@pytest.mark.parametrize("layer", ["0", "2"])
def test_spotlights_and_the_python_that_makes_them(pictures: Api, layer: str, per: str | None) -> None:
    body = {"input": {"index": 3}, "layer": layer, "per": per, "top": 4, "curve": 7}
    answer = asked(pictures, "spotlight", body)
    made = run_python(answer)
    assert [one["score"] for one in answer["top"]] == pytest.approx(made["top"]["score"].tolist(), rel=1e-5)
    assert [one["tags"]["id"] for one in answer["top"]] == made["top"]["id"].tolist()
    assert [one["visits"] is None for one in answer["top"]] == [per is None] * 4
    curves = {one["class"]: one["scores"] for one in answer["curves"]}
    classes = pictures.run.classes
    for number, one in enumerate(classes.entries):
        expected = made["curves"].where(task=one.task, label=one.label)["score"]
        assert curves[number] == pytest.approx(expected.tolist(), rel=1e-4)
        (total,) = made["totals"].where(task=one.task, label=one.label)["total"]
        assert answer["totals"][number] == {"class": number, "total": pytest.approx(total)}
    assert answer["timeline"]["total"] == pytest.approx(made["timeline"]["total"].tolist())
    assert sum(answer["timeline"]["total"]) == pytest.approx(sum(one["total"] for one in answer["totals"]))


def test_top_images_are_those_of_their_ids(pictures: Api) -> None:
    answer = asked(pictures, "spotlight", {"input": {"index": 0}, "layer": "0", "per": "id"})
    shown = pictures.run.pictures
    assert shown is not None
    assert [one["pixels"] for one in answer["top"]] == [shown.training(one["tags"]["id"]) for one in answer["top"]]
    assert answer["top"][0]["class"] in range(6)


def test_a_prompt_is_answered_token_by_token(language: Api) -> None:
    answer = asked(language, "predict", {"input": {"prompt": "the wolf", "token": 2}})
    assert (answer["tokens"], answer["token"], answer["separator"]) == (list("the wolf"), 2, "")
    assert len(answer["expected"]) == 10
    vocabulary = language.run.text.vocabulary  # type: ignore[union-attr]
    probabilities = run_python(answer)["probabilities"][0]
    for one in answer["expected"]:
        assert one["probability"] == pytest.approx(float(probabilities[vocabulary.index(one["token"])]), rel=1e-5)
    shorter = asked(language, "predict", {"input": {"prompt": "the"}})
    assert shorter["expected"] == answer["expected"]


@pytest.mark.parametrize("summed", [True, False])
def test_passages_and_the_python_that_makes_them(language: Api, summed: bool) -> None:
    body = {"input": {"prompt": "the wolf"}, "layer": "lstm.l0", "summed": summed, "most": 3}
    answer = asked(language, "passages", body)
    made = run_python(answer)["passages"]
    assert [one["score"] for one in answer["passages"]] == pytest.approx([one.score for one in made], rel=1e-5)
    assert [one["tokens"] for one in answer["passages"]] == [list(one.tokens) for one in made]
    half = 2 * len(runs.FABLE)
    for one in answer["passages"]:
        first = one["marks"][0]["position"] < half
        assert (one["title"], one["document"]) == (("First", (0, half)) if first else ("Second", (half, 2 * half)))
        assert (one["visits"] is None) != summed


def test_a_merged_run_says_what_it_cannot_do(merged: Api) -> None:
    run = asked(merged, "run", {})
    assert run["kind"] == "text"
    assert "keys only" in run["cannot"]["mute"]
    assert "no training time" in run["cannot"]["time"]
    prompt = {"prompt": "the wolf"}
    assert asked(merged, "passages", {"input": prompt, "layer": "lstm.l0"})["passages"]
    with pytest.raises(QueryError, match="sums over all visits"):
        asked(merged, "passages", {"input": prompt, "layer": "lstm.l0", "summed": False})
    with pytest.raises(Refused, match="nothing can be muted"):
        asked(merged, "mute", {"input": prompt, "mute": [{"positions": [0, 5]}]})
    assert asked(merged, "jobs", {})["certificate"]["keys_only"]


def test_rows_of_numbers_are_shown_as_such(tmp_path: Path) -> None:
    path = runs.rows(tmp_path / "rows")
    bare = Api(open_run(path), prepare=False)
    run = asked(bare, "run", {})
    assert (run["kind"], run["inputs"], run["classes"]) == ("rows", None, [])
    assert {one["what"] for one in run["missing"]} == {"model", "inputs"}
    assert "pass --model PACKAGE:FACTORY" in run["cannot"]["spotlight"]
    with pytest.raises(Refused, match="pass --model"):
        asked(bare, "predict", {"input": {"index": 0}})

    named = Companions(model=runs.ROWS.model, inputs=path / "mine.npy")
    for api in prepared(path, named):
        answer = asked(api, "spotlight", {"input": {"index": 2}, "layer": "0", "per": "sensor", "top": 2})
        assert {one["tags"]["sensor"] for one in answer["top"]} == {0, 1}
        assert set(answer["absent"]) == {"curves", "totals"}
        assert [one["score"] for one in answer["top"]] == pytest.approx(run_python(answer)["top"]["score"].tolist())
        assert asked(api, "predict", {"input": {"index": 2}})["values"] == pytest.approx(
            np.load(path / "mine.npy")[2].tolist()
        )


def test_training_images_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    path = runs.pictures(tmp_path / "run")
    inputs = read_inputs(path / INPUTS)
    save_inputs(path, inputs=inputs.inputs, images=inputs.images)
    opened_run = open_run(path, runs.PICTURES)
    assert opened_run.kind == "images"
    assert "training_images=..." in opened_run.missing["training images"]
    api = Api(opened_run, prepare=False)
    answer = asked(api, "spotlight", {"input": {"index": 0}, "layer": "0", "per": "id"})
    assert {one["pixels"] for one in answer["top"]} == {None}
    shown = asked(api, "predict", {"input": {"index": 0}})
    assert (shown["label"], shown["class"], shown["task"]) == (None, None, None)
    assert asked(api, "inputs", {})["total"] == 12
    with pytest.raises(Refused, match="needs the model and labels"):
        asked(api, "inputs", {"outcome": "wrong"})


def test_layers_with_several_rows_an_input_are_summed(tmp_path: Path) -> None:
    path = runs.rows(tmp_path / "rows")
    np.save(path / "pairs.npy", torch.randn(2, 3, 6).numpy())
    for api in prepared(path, Companions(model=runs.ROWS.model, inputs=path / "pairs.npy")):
        answer = asked(api, "spotlight", {"input": {"index": 1}, "layer": "0", "top": 5})
        assert answer["note"].startswith("summed over the 3 rows")
        memory, model = api.run.memory, api.run.network
        assert model is not None
        each = memory.attend(model, torch.from_numpy(np.load(path / "pairs.npy")[1:2]))["0"].top(40)
        sums = {slot: each["score"][each["slot"] == slot].sum() for slot in each["slot"]}
        for one in answer["top"]:
            assert one["score"] == pytest.approx(sums[one["slot"]], rel=1e-4)
        assert [one["score"] for one in answer["top"]] == pytest.approx(run_python(answer)["top"]["score"].tolist())
        assert "output for each class" in api.run.cannot["predict"]
        shown = asked(api, "predict", {"input": {"index": 1}})
        assert (len(shown["values"]), shown["probabilities"], shown["predicted"]) == (18, None, None)
        with pytest.raises(Refused, match="output for each class"):
            asked(api, "history", {"input": {"index": 1}})


def test_parameters_that_were_not_recorded_are_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = normalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float32", exclude="2") as recorder:
        for step in range(8):
            recorder.tag(label=torch.arange(4) % 3)
            optimizer.zero_grad()
            model(torch.randn(4, 20)).square().mean().backward()
            optimizer.step()
            if step == 3:
                recorder.sync()
    np.save(tmp_path / "inputs.npy", torch.randn(2, 20).numpy())
    named = Companions(model="tests.viewer.test_answers:normalised", inputs=tmp_path / "inputs.npy")
    for api in prepared(tmp_path / "run", named):
        at = {step: asked(api, "predict", {"input": {"index": 0}, "step": step}) for step in (4, 6, 8)}
        assert (at[4]["note"], at[8]["note"]) == (None, None)
        assert at[6]["note"].endswith("too large to account for is as it was at step 4: '2.weight'")
        assert api.stops == [0, 4, 8]
        with pytest.warns(UserWarning, match="as it was at step 4"):
            shown = run_python(at[6])["probabilities"]
        assert_close(torch.tensor([at[6]["probabilities"]]), shown)
        assert asked(api, "run", {})["coverage"]["text"] == str(api.run.memory.coverage)


def normalised() -> torch.nn.Module:
    """One with a norm, which is accounted for, and a layer that is too large for that."""
    wide = torch.nn.Linear(6, 4000)
    return torch.nn.Sequential(torch.nn.Linear(20, 6), torch.nn.LayerNorm(6), wide, torch.nn.Linear(4000, 3))


def test_keys_alone_have_spotlights_but_nothing_to_mute(tmp_path: Path) -> None:
    path = runs.pictures(tmp_path / "keys", values=False)
    for api in prepared(path, runs.PICTURES):
        assert asked(api, "spotlight", {"input": {"index": 1}, "layer": "2"})["top"]
        assert asked(api, "predict", {"input": {"index": 1}, "step": 12})["step"] == 12
        with pytest.raises(QueryError, match="keys only"):
            asked(api, "predict", {"input": {"index": 1}, "step": 7})
        with pytest.raises(Refused, match="keys only"):
            asked(api, "mute", {"input": {"index": 1}, "mute": [{"label": [1]}]})


def test_what_a_run_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    model = runs.network()
    optimizer = runs.sgd(model.parameters())
    about = {"model": "strange:network", "inputs": "../secret.npy", "class_names": 7, "image_shape": [0, "x"]}
    with dualform.record(model, optimizer, tmp_path / "run", about=about):
        model(torch.randn(2, 20)).sum().backward()
        optimizer.step()
    opened_run = open_run(tmp_path / "run")
    assert not (tmp_path / "imported").exists()
    assert opened_run.network is None
    assert "pass it if you trust it" in opened_run.missing["model"]
    assert "no file of its own" in opened_run.missing["inputs"]


def test_what_the_user_names_has_to_be_there(tmp_path: Path) -> None:
    path = runs.pictures(tmp_path / "run")
    with pytest.raises(QueryError, match="cannot import 'no_such_package'"):
        open_run(path, Companions(model="no_such_package:network"))
    with pytest.raises(QueryError, match="there is no file"):
        open_run(path, Companions(model=runs.PICTURES.model, inputs=tmp_path / "none.npy"))
    with pytest.raises(UnknownName, match="no layer in this model called"):
        open_run(path, Companions(model="tests.viewer.test_answers:other_network"))


def other_network() -> torch.nn.Module:
    return torch.nn.Linear(3, 4)
