"""Forgetting: views of the run against networks put together by hand."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import dualform
from dualform.experiments.cases import SelectedInput
from dualform.experiments.continual import accuracies, attention_matrices, predict_muted
from dualform.experiments.tasks import Task
from dualform.experiments.training import SMALL, Phase, TrainedClassifier, accuracy, train
from tests.experiments.images import two_tasks

Run = tuple[list[Task], TrainedClassifier, dualform.Memory]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    on, path = two_tasks(), tmp_path_factory.mktemp("continual") / "run"
    trained = train([Phase((task,), 6) for task in on], SMALL, seed=0, path=path)
    return on, trained, dualform.load(path)


def test_accuracies_of_all_views(run: Run) -> None:
    on, trained, memory = run
    by_view = accuracies(memory, trained.model, on, first_steps=6)
    assert by_view["final"] == trained.accuracies[1]
    assert by_view["until_first_task"] == trained.accuracies[0]
    muted = memory.where(task="first").model(trained.model)
    assert by_view["without_second_task"] == {task.name: accuracy(muted, task.test) for task in on}
    muted = memory.where(task="second").model(trained.model)
    assert by_view["without_first_task"] == {task.name: accuracy(muted, task.test) for task in on}


def test_the_story_mutes_one_class_of_the_second_task(run: Run) -> None:
    on, trained, memory = run
    said = int(trained.model(on[0].test.images[:1]).argmax())
    muted_predictions = predict_muted(memory, trained.model, SelectedInput(on[0], 0, 0, said, "20"), on[1])
    assert (muted_predictions.muted_task, muted_predictions.muted_class) == ("second", f"second {said}")
    muted = memory.without(task="second", label=said).model(trained.model)
    expected = muted(on[0].test.images[:1]).softmax(dim=1)[0]
    assert_close(torch.tensor(list(muted_predictions.after.values())), expected.detach())
    expected = memory.where(task="first").model(trained.model)(on[0].test.images[:1]).softmax(dim=1)[0]
    assert_close(torch.tensor(list(muted_predictions.without_task.values())), expected.detach())
    assert muted_predictions.to_dict()["predicted_before"] == f"first {said}"


def test_attention_matrices_are_shares_of_each_class(run: Run) -> None:
    on, trained, memory = run
    matrices = attention_matrices(memory, trained.model, on)
    assert set(matrices) == {"layer-0", "layer-1", "layer-2"}
    for matrix in matrices.values():
        assert matrix.shape == (20, 20)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
    # test class 13 is the second task's 3, training class 4 the first task's 4
    inputs = on[1].test.images[on[1].test.labels == 3]
    slots = memory.attend(trained.model, inputs)["layer-0"].top(10_000, absolute=True)
    shares = []
    for query in range(len(inputs)):
        own = slots.where(query=query)
        fitting = (own["task"] == "first") & (own["label"] == 4)
        shares.append(own["score"][fitting].sum() / own["score"].sum())
    np.testing.assert_allclose(matrices["layer-0"][13, 4], np.mean(shares), rtol=1e-5)
