"""The viewer of a run with slots that belong to no single example: they have neither id nor class."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from dualform.errors import Refused
from dualform.viewer.api import Api
from dualform.viewer.opened_run import open_run
from tests.store.hostile.forge import Forged
from tests.viewer import runs
from tests.viewer.runs import asked
from tests.viewer.test_answers import prepared, run_python

pytestmark = pytest.mark.slow

SPOTLIGHT = {"input": {"index": 3}, "layer": "2", "top": 200}
SETS: list[list[dict[str, Any]]] = [
    [{"label": [1]}],  # slots that have a label but no task, and so are in no class, are muted, too
    [{"task": ["stripes"]}],
    [{"task": ["stripes"], "label": [1]}],
    [{"label": [0]}, {"steps": [3, 9]}],
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    yield from prepared(runs.untagged(tmp_path_factory.mktemp("run") / "untagged"), runs.PICTURES)


def test_all_jobs_are_done(api: Api) -> None:
    assert [(job["name"], job["failed"]) for job in asked(api, "jobs", {})["jobs"]] == [
        (name, None) for name in ("spotlight", "mute", "accuracy", "certificate")
    ]


def test_classes_are_those_of_slots_that_have_one(api: Api) -> None:
    run = asked(api, "run", {})
    # of the first layer, whose slots of the first task have no tags
    assert [(entry["task"], entry["label"]) for entry in run["classes"]] == [("stripes", label) for label in range(3)]
    assert [task["name"] for task in run["tasks"]] == ["stripes"]


def test_slots_have_null_for_what_they_have_not(api: Api) -> None:
    single = asked(api, "spotlight", SPOTLIGHT)
    of_slots = {one["slot"]: one for one in single["top"]}
    assert len(of_slots) == 120
    for slot, one in of_slots.items():
        assert [one["tags"][tag] is None for tag in ("id", "label", "task")] == [
            slot % 5 < 2,
            slot % 5 < 1,
            slot % 5 < 2,
        ]
        if slot % 5 < 2:
            assert (one["class"], one["pixels"]) == (None, None)
    assert run_python(single)["top"]["id"].tolist() == [one["tags"]["id"] for one in single["top"]]
    assert sum(len(curve["scores"]) for curve in single["curves"]) == 36  # of the classes that there are


def test_examples_are_summed_up_and_what_is_none_apart(api: Api) -> None:
    answer = asked(api, "spotlight", {**SPOTLIGHT, "per": "id"})
    (untagged,) = [one for one in answer["top"] if one["tags"]["id"] is None]
    assert (untagged["visits"], untagged["pixels"]) == (48, None)
    assert sum(one["visits"] for one in answer["top"]) == 120


@pytest.mark.parametrize("sets", SETS, ids=str)
def test_muting_is_what_its_python_does(api: Api, sets: list[dict[str, Any]]) -> None:
    answer = asked(api, "mute", {"input": {"index": 4}, "mute": sets})
    expected = run_python(answer)["probabilities"][0]
    assert_close(torch.tensor(answer["after"]["probabilities"]), expected, rtol=1e-3, atol=1e-4)


def test_null_is_nothing_to_mute(api: Api) -> None:
    with pytest.raises(Refused, match="a list of values"):
        asked(api, "mute", {"input": {"index": 4}, "mute": [{"id": [None]}]})


def test_passages_and_positions(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = runs.language(tmp_path_factory.mktemp("run") / "language")
    forged = Forged.of(path)
    for shard in forged.shards[1:]:
        for name in [name for name in shard.tensors if name.startswith("tags/")]:
            missing = np.arange(len(shard.tensors[name])) % 3 == 0
            shard.tensors[name][missing] = 0
            shard.tensors[f"untagged/{name.removeprefix('tags/')}"] = missing
    forged.write(path)
    api = Api(open_run(path), prepare=False)
    prompt = {"prompt": "the wolf"}
    for summed in (True, False):
        body = {"input": prompt, "layer": "lstm.l0", "summed": summed, "most": 3}
        answer = asked(api, "passages", body)
        made = run_python(answer)["passages"]
        assert made
        assert [one["tokens"] for one in answer["passages"]] == [list(one.tokens) for one in made]
    answer = asked(api, "mute", {"input": prompt, "mute": [{"positions": [0, 99]}]})
    probabilities = run_python(answer)["probabilities"][0]
    vocabulary = api.run.text.vocabulary  # type: ignore[union-attr]
    for one in answer["after"]["expected"]:
        expected = float(probabilities[vocabulary.index(one["token"])])
        assert one["probability"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
