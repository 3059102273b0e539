"""Training of the experiments: repeatable, tagged rightly, through all phases with one optimiser."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import dualform
from dualform.experiments.tasks import training_images
from dualform.experiments.training import PAPER, SMALL, Phase, accuracy, predictions, train
from tests.experiments.images import two_tasks


def test_the_same_seed_gives_the_same_network_and_another_another(tmp_path: Path) -> None:
    first, _ = two_tasks()
    state = torch.random.get_rng_state()
    networks = [
        train([Phase((first,), 5)], SMALL, seed=seed, path=tmp_path / str(number)).model
        for number, seed in enumerate((0, 0, 1))
    ]
    weights = [dict(network.named_parameters())["layer-1.weight"] for network in networks]
    assert_close(weights[0], weights[1], rtol=0, atol=0)
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("together", [True, False])
def test_tags_name_the_image_its_class_and_its_task(tmp_path: Path, together: bool) -> None:
    on = two_tasks()
    phases = [Phase(tuple(on), 4)] if together else [Phase((task,), 2) for task in on]
    trained = train(phases, SMALL, seed=0, path=tmp_path / "run")
    memory = dualform.load(tmp_path / "run")
    images = torch.cat([task.train.images for task in on])
    query = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    table = memory.attend({"layer-0": query})["layer-0"].top(10_000)
    assert len(table) == 4 * SMALL.batch
    # Whatever the tags say was seen, was seen: its score is that of the image with that id.
    ids = torch.from_numpy(table["id"].astype("int64"))
    assert_close(torch.from_numpy(table["score"]), images[ids] @ query[0], rtol=0, atol=2e-2)  # float16
    tasks = [on[int(one >= on[1].train.first_id)] for one in ids]
    assert table["task"].tolist() == [task.name for task in tasks]
    labels = [int(task.train.labels[one - task.train.first_id]) for task, one in zip(tasks, ids, strict=True)]
    assert table["label"].tolist() == labels
    assert len(training_images(on)) == len(images)
    assert len(trained.accuracies) == len(phases)


def test_an_epoch_sees_each_image_once(tmp_path: Path) -> None:
    on = two_tasks()
    train([Phase(tuple(on), 4)], SMALL, seed=0, path=tmp_path / "run")  # an epoch has 80 // 32 = 2 whole batches
    table = dualform.load(tmp_path / "run").attend({"layer-0": torch.ones(1, 64)})["layer-0"].top(10_000)
    for epoch in (table["step"] < 2, table["step"] >= 2):
        assert len(set(table["id"][epoch].tolist())) == 2 * SMALL.batch


def test_accuracy_is_that_of_the_predictions(tmp_path: Path) -> None:
    first, _ = two_tasks()
    trained = train([Phase((first,), 3)], SMALL, seed=0, path=tmp_path / "run")
    right = sum(
        int(trained.model(image[None]).argmax()) == int(label)
        for image, label in zip(first.test.images, first.test.labels, strict=True)
    )
    assert accuracy(trained.model, first.test) == pytest.approx(100 * right / len(first.test))
    assert trained.accuracies == [{"first": pytest.approx(100 * right / len(first.test))}]
    assert len(predictions(trained.model, first.test.images)) == len(first.test)


def test_the_paper_s_network() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in PAPER.network().named_parameters()}
    assert shapes["layer-0.weight"] == (800, 784)
    assert shapes["layer-1.weight"] == (800, 800)
    assert shapes["layer-2.weight"] == (10, 800)
    assert (PAPER.batch, PAPER.lr, PAPER.momentum, PAPER.clip) == (128, 3e-3, 0.9, 1.0)
