"""Muting in the viewer is `memory.without`, however classes, images and stretches of time overlap."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError, Refused, UnknownName
from dualform.viewer.api import Api
from dualform.viewer.muting import Muting
from dualform.viewer.opened_run import OpenedRun, open_run
from dualform.viewer.requests import MuteRequest
from tests.viewer import runs
from tests.viewer.runs import asked
from tests.viewer.test_answers import run_python

pytestmark = pytest.mark.slow

OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": runs.sgd,
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
}

FEW = settings(max_examples=settings().max_examples // 3)
TASK = st.sampled_from(list(runs.TASKS))
SETS = st.one_of(
    st.builds(lambda label: {"label": [label]}, st.integers(0, 2)),
    st.builds(lambda task: {"task": [task]}, TASK),
    st.builds(lambda task, label: {"task": [task], "label": [label]}, TASK, st.integers(0, 2)),
    st.builds(lambda first, more: {"steps": [first, first + more]}, st.integers(0, 20), st.integers(1, 30)),
    st.builds(lambda first: {"steps": [first, first + 7], "label": [1]}, st.integers(0, 20)),
)  # fmt: skip


@pytest.fixture(scope="module", params=list(OPTIMISERS))
def opened_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenedRun:
    path = tmp_path_factory.mktemp("run") / "pictures"
    return open_run(runs.pictures(path, OPTIMISERS[request.param]), runs.PICTURES)


@pytest.fixture(scope="module")
def muting(opened_run: OpenedRun) -> Muting:
    muting = Muting(opened_run)
    muting.prepare()
    assert muting.group_weights is not None
    return muting


def ask(muting: Muting, sets: list[dict[str, Any]], index: int = 4) -> dict[str, Any]:
    return muting.mute(MuteRequest.parse({"input": {"index": index}, "mute": sets}))


def naive(memory: dualform.Memory, sets: list[dict[str, Any]]) -> dualform.Memory:
    for one in sets:
        steps = {"step": range(*one["steps"])} if "steps" in one else {}
        memory = memory.without(**{name: values for name, values in one.items() if name != "steps"}, **steps)
    return memory


def said(opened_run: OpenedRun, model: torch.nn.Module, index: int = 4) -> torch.Tensor:
    assert opened_run.inputs is not None
    return torch.softmax(model(opened_run.inputs.row(index)), dim=1)[0].detach()


@FEW
@given(sets=st.lists(SETS, min_size=1, max_size=4))
def test_any_sets_are_muted_as_views_are(opened_run: OpenedRun, muting: Muting, sets: list[dict[str, Any]]) -> None:
    assert opened_run.network is not None
    answer, view = ask(muting, sets), naive(opened_run.memory, sets)
    expected = said(opened_run, view.model(opened_run.network))
    assert_close(torch.tensor(answer["after"]["probabilities"]), expected, rtol=1e-3, atol=1e-4)
    assert answer["slots"] == {layer: [120 - view.slots(layer), 120] for layer in ("0", "2")}


def test_each_layer_alone(opened_run: OpenedRun, muting: Muting) -> None:
    assert opened_run.network is not None
    answer = ask(muting, [{"label": [1]}, {"steps": [3, 9]}])
    muted = opened_run.memory.without(label=1).without(step=range(3, 9))
    for layer in ("0", "2"):
        model = opened_run.memory.model(opened_run.network)
        model.load_state_dict(model.state_dict() | muted.weights(layer))
        expected = said(opened_run, model)
        found = torch.tensor(answer["layers"][layer]["probabilities"])
        assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_python_makes_the_same(opened_run: OpenedRun, muting: Muting) -> None:
    sets: list[dict[str, Any]] = [{"task": ["stripes"], "label": [1]}, {"id": [3, 4, 40]}, {"steps": [3, 9]}]
    ids = [3, 4, 40]
    known = set(opened_run.memory.visits("0", by="id")["id"].tolist())
    sets[1] = {"id": [one for one in ids if one in known]}
    answer = ask(muting, sets)
    assert_close(
        torch.tensor([answer["after"]["probabilities"]]), run_python(answer)["probabilities"], rtol=1e-3, atol=1e-4
    )


def test_nothing_muted_is_the_model_itself(opened_run: OpenedRun, muting: Muting) -> None:
    assert opened_run.network is not None
    answer = ask(muting, [])
    assert answer["before"] == answer["after"]
    assert_close(torch.tensor(answer["before"]["probabilities"]), said(opened_run, opened_run.network))
    assert answer["slots"] == {"0": [0, 120], "2": [0, 120]}


def test_classes_wait_until_their_weights_are_summed_up(opened_run: OpenedRun) -> None:
    early = Muting(opened_run)
    with pytest.raises(Refused, match="being summed up") as refused:
        ask(early, [{"label": [1]}])
    assert (refused.value.status, refused.value.job) == (503, "mute")
    ask(early, [{"steps": [0, 5]}])


def test_classes_whose_weights_would_not_fit_are_read(
    opened_run: OpenedRun, muting: Muting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: Any, **__: Any) -> None:
        raise QueryError("more than fits")

    reading = Muting(opened_run)
    monkeypatch.setattr(opened_run.memory, "group_weights", too_many)
    reading.prepare()
    sets: list[dict[str, Any]] = [{"label": [1]}, {"steps": [3, 9]}, {"task": ["triangles"]}]
    assert reading.reads_slots(MuteRequest.parse({"input": {"index": 4}, "mute": sets[:1]}).mute)
    found, expected = ask(reading, sets), ask(muting, sets)
    assert found["slots"] == expected["slots"]
    assert found["after"]["probabilities"] == pytest.approx(expected["after"]["probabilities"], abs=1e-4)


@pytest.mark.parametrize(
    "sets", [[{"label": [7]}], [{"task": ["circles"]}], [{"id": [999]}], [{"colour": [1]}], [{"label": ["1"]}]]
)
def test_what_there_is_not_cannot_be_muted(muting: Muting, sets: list[dict[str, Any]]) -> None:
    with pytest.raises(UnknownName, match="choose from"):
        ask(muting, sets)


def test_a_document_is_muted(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = runs.language(tmp_path_factory.mktemp("run") / "language")
    api = Api(open_run(path), prepare=False)
    body = {"input": {"prompt": "the wolf"}, "mute": [{"positions": [0, 2 * len(runs.FABLE)]}]}
    answer = asked(api, "mute", body)
    probabilities = run_python(answer)["probabilities"][0]
    vocabulary = api.run.text.vocabulary  # type: ignore[union-attr]
    assert [one["token"] for one in answer["before"]["expected"]] == [
        one["token"] for one in answer["after"]["expected"]
    ]
    for one in answer["after"]["expected"]:
        expected = float(probabilities[vocabulary.index(one["token"])])
        assert one["probability"] == pytest.approx(expected, rel=1e-2, abs=1e-4)
    muted, every = answer["slots"]["lstm.l0"]
    assert 0 < muted < every
    assert api._muting.reads_slots(MuteRequest.parse(body).mute)
    api.close()
