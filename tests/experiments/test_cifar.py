"""Convolutional networks on the embedded digits: trained, recorded, asked and drawn, with few steps."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.companions import own_recipe
from dualform.datasets import digits
from dualform.datasets.images import ImageSet, Split
from dualform.errors import QueryError, UnknownName
from dualform.experiments.cifar import answers
from dualform.experiments.cifar import reproduce as experiment
from dualform.experiments.cifar.images import as_task, draw_moves, halves, moved
from dualform.experiments.cifar.network import cifar_network, describe, digits_network, layers_asked
from dualform.experiments.cifar.plan import DATASETS, CnnOptions, make_plan
from dualform.experiments.cifar.reproduce import reproduce
from dualform.experiments.cifar.training import DIGITS, TrainedCnn, learning_rate, train, train_in_turn
from dualform.experiments.loops import one_thread
from dualform.experiments.outcome import Outcome
from dualform.experiments.recipes import convolutional_recipe
from dualform.experiments.tasks import Task
from dualform.experiments.training import accuracy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """One thread: so small networks gain nothing by a second, and lose much on a busy machine."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def task() -> Task:
    return as_task(digits.load())


@pytest.fixture(scope="module")
def trained(task: Task, tmp_path_factory: pytest.TempPathFactory) -> TrainedCnn:
    return train(task, DIGITS, 44, seed=0, runs=tmp_path_factory.mktemp("runs"))


# Images


def test_colours_become_channels_and_ids_go_on_through_the_halves(task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(256, (30, 3 * 4), generator=generator).to(torch.uint8)
    split = Split(raw, torch.arange(30) % 10)
    colours = as_task(ImageSet("colours", tuple("abcdefghij"), (3, 2, 2), split, split))
    assert colours.train.images.shape == (30, 3, 2, 2)
    torch.testing.assert_close(colours.train.images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    first, second = halves(colours)
    assert (first.name, second.name) == ("a to e", "f to j")
    assert (first.train.first_id, second.train.first_id) == (0, 15)
    torch.testing.assert_close(second.train.labels, torch.arange(30)[torch.arange(30) % 10 >= 5] % 10)
    assert task.train.images.shape == (1437, 1, 8, 8)


def test_images_are_moved_and_mirrored() -> None:
    def augmented(images: Tensor, mirror: bool) -> Tensor:
        return moved(images, draw_moves(len(images), 1, mirror, generator), 1)

    generator = torch.Generator().manual_seed(0)
    image = torch.arange(1.0, 25.0).reshape(1, 2, 3, 4)
    padded = F.pad(image, (1, 1, 1, 1))[0]
    windows = [padded[:, y : y + 3, x : x + 4] for y in range(3) for x in range(3)]
    allowed = {tuple(window.flatten().tolist()) for plain in windows for window in (plain, plain.flip(2))}
    seen = {tuple(one.flatten().tolist()) for one in augmented(image.expand(500, 2, 3, 4), True)}
    assert seen == allowed
    unmirrored = {tuple(one.flatten().tolist()) for one in augmented(image.expand(500, 2, 3, 4), False)}
    assert unmirrored == {tuple(window.flatten().tolist()) for window in windows}


# Training


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 100, 0.5) for step in range(100)]
    assert max(rates) == rates[24] == 0.5
    assert rates[:25] == sorted(rates[:25])
    assert rates[24:] == sorted(rates[24:], reverse=True)
    assert 0 < rates[-1] < 0.01
    assert learning_rate(0, 1, 0.5) == 0.5


def test_networks_take_their_images() -> None:
    assert cifar_network()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert layers_asked(digits_network()) == ["conv-0", "conv-1", "output"]
    assert describe(cifar_network()).startswith("32 channels of 4 x 4, stride 2; 64 channels of 3 x 3; 128 channels")


def test_the_output_is_recorded_in_all_steps_and_each_image_once_in_the_last_epoch(
    task: Task, trained: TrainedCnn
) -> None:
    whole, last = dualform.load(trained.whole), dualform.load(trained.last_epoch)
    assert (whole.layers, whole.steps, whole.slots("output")) == (["output"], 44, 44 * 32)
    assert whole.verify().ok
    assert last.steps == 1437 // 32
    assert {*last.layers, *trained.not_recorded} == {"conv-0", "conv-1", "output"}
    assert last.visits("output", "id")["visits"].tolist() == [1] * 44 * 32
    assert trained.accuracy > 85


def test_the_same_seed_gives_the_same_network(task: Task, trained: TrainedCnn, tmp_path: Path) -> None:
    again = train(task, DIGITS, 44, seed=0, runs=tmp_path)
    for name, parameter in again.model.named_parameters():
        torch.testing.assert_close(parameter, trained.model.get_parameter(name))


def test_halves_are_learnt_in_turn_and_can_be_gone_back_to(task: Task, tmp_path: Path) -> None:
    first, second = halves(task)
    in_turn = train_in_turn((first, second), DIGITS, 40, seed=0, runs=tmp_path)
    after_first, after_second = in_turn.accuracies
    assert after_first[first.name] > 80 > 20 > after_second[first.name]
    memory = dualform.load(in_turn.run)
    assert memory.slots("output") == 80 * 32
    back = memory.until(40).model(in_turn.model)
    assert accuracy(back, first.test) > 80


# Questions


def naive_queries(model: nn.Module, images: Tensor) -> Tensor:
    """The input of the output layer."""
    with torch.no_grad():
        for name, module in model.named_children():
            if name == "output":
                return images
            images = module(images)
    raise AssertionError


def test_attended_classes_are_those_of_a_dense_loop(task: Task, trained: TrainedCnn) -> None:
    memory, images = dualform.load(trained.last_epoch), task.test.images[:20]
    attended = answers.attended_classes(memory, trained.model, images)["output"]
    slots = memory.attend({"output": torch.eye(128)})["output"].total(by="label")  # key sums, an entry a query
    sums = slots["total"].reshape(128, 10)
    totals = naive_queries(trained.model, images).double().numpy() @ sums
    assert attended.tolist() == totals.argmax(axis=1).tolist()


def test_nearest_means_by_hand(task: Task, trained: TrainedCnn) -> None:
    nearest = answers.nearest_means(trained.model, task)
    assert list(nearest) == ["conv-0", "conv-1", "output"]
    pixels, labels = task.train.images.flatten(1).double(), task.train.labels
    means = torch.stack([pixels[labels == label].mean(dim=0) for label in range(10)])
    distances = (task.test.images.flatten(1).double()[:, None] - means).norm(dim=2)
    assert nearest["conv-0"].tolist() == distances.argmin(dim=1).tolist()


class Positions(nn.Sequential):
    """A linear layer that is called at each position of a map, as a convolution of 1 x 1 pixels is."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.place(images.permute(0, 2, 3, 1)).mean(dim=(1, 2))
        return output


def test_position_maps_are_the_sums_over_the_other_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(6, 3, 2, 5, generator=generator), torch.arange(6) % 4
    model = Positions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float32") as recorder:
        for rows in ([0, 1, 2], [3, 4, 5], [1, 5, 0]):
            recorder.tag(id=torch.tensor(rows), label=labels[rows], task="a")
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    monkeypatch.setattr(answers, "layer_sides", lambda *_: {"place": (2, 5), "unknown": (1, 1)})
    test = torch.randn(3, 2, 5, generator=generator)
    maps = answers.position_maps(dualform.load(tmp_path / "run"), model, test, 5)
    assert list(maps) == ["place"]
    pairs = 2 * torch.einsum("cyx,cvw->yxvw", test, images[5])  # two visits
    np.testing.assert_allclose(maps["place"].test, pairs.sum(dim=(2, 3)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(maps["place"].training, pairs.sum(dim=(0, 1)), rtol=1e-4, atol=1e-5)


def test_convolutions_have_sides_and_the_output_has_none() -> None:
    assert answers.layer_sides(cifar_network(), torch.zeros(3, 32, 32)) == {
        "conv-0": (16, 16),
        "conv-1": (16, 16),
        "conv-2": (8, 8),
    }


# From data to page


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    options = CnnOptions("digits", seeds=2, steps=12, keep_run=True, index=("3",))
    return reproduce(options, tmp_path_factory.mktemp("results") / "cifar")


def test_the_page_shows_all_figures(outcome: Outcome) -> None:
    page = (outcome.out / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r'src="([^"]+)"', page)
    assert len(shown) == 2 + 1
    for name in shown:
        for suffix in (".png", ".pdf"):
            assert (outcome.out / name).with_suffix(suffix).stat().st_size > 1000
    assert "One half of the classes after the other" in page


def test_the_document_is_on_the_disk_and_certified(outcome: Outcome) -> None:
    stored = json.loads((outcome.out / "results.json").read_text(encoding="utf-8"))
    assert stored == outcome.document
    assert outcome.certified
    assert [(one["seed"], one["run"]) for one in stored["certificates"]] == [
        (0, "all classes"), (0, "halves"), (1, "all classes"), (1, "halves"),
    ]  # fmt: skip
    for leaf in (stored["accuracy"], stored["continual"]["accuracy"]["without_second_task"]["0 to 4"]):
        assert len(leaf["values"]) == 2
    assert list(stored["table1"]["whole_training"]) == ["output"]
    assert "output" in stored["table1"]["last_epoch"]
    assert [len(ids) for ids in stored["cases"][0]["top_images"].values()][-1] == 3


def test_kept_runs_have_inputs_to_ask_about(outcome: Outcome) -> None:
    for run in ("whole", "last-epoch", "in-turn"):
        path = outcome.out / "runs" / "seed-1" / run
        assert dualform.load(path).about["image_shape"] == [8, 8]
        assert (path / "inputs.safetensors").is_file()


@pytest.mark.parametrize("run", ["whole", "last-epoch", "in-turn"])
def test_kept_runs_name_recipes_that_train_them_again(outcome: Outcome, run: str) -> None:
    path = outcome.out / "runs" / "seed-1" / run
    recipe = own_recipe(dualform.load(path))
    memory = dualform.load(path, recipe=recipe)
    trained, again = memory.model(recipe.model()), memory.retrain(weights={recipe.batch(0)["id"][0].item(): 1.0})
    for name, parameter in trained.named_parameters():
        torch.testing.assert_close(again.get_parameter(name), parameter, rtol=0, atol=0)


def test_snapshots_give_the_answers_of_slots(task: Task, tmp_path: Path) -> None:
    again = train(task, DIGITS, 60, seed=0, runs=tmp_path / "snapshots", keep="snapshots")
    before = train(task, DIGITS, 60, seed=0, runs=tmp_path / "slots")
    made = [
        again.of_last_epoch,
        convolutional_recipe("last-epoch", "digits", seed=0, steps=60),
    ]  # from its middle, or from its beginning
    kept, *others = (
        answers.attended_classes(memory, before.model, task.test.images[:20])
        for memory in (dualform.load(before.last_epoch), *(dualform.load(again.last_epoch, recipe=r) for r in made))
    )
    for other in others:
        assert {layer: classes.tolist() for layer, classes in other.items()} == {
            layer: classes.tolist() for layer, classes in kept.items()
        }
    assert dualform.load(again.whole, recipe=again.recipe).verify().ok
    assert dualform.load(again.last_epoch).steps == 1437 // 32


def test_other_runs_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_case = replace(DATASETS["digits"], cases=DATASETS["digits"].cases[:1])
    monkeypatch.setitem(DATASETS, "digits", one_case)  # each figure takes a second
    outcome = reproduce(CnnOptions("digits", steps=2), tmp_path)
    assert [case["true"] for case in outcome.document["cases"]] == ["6"]
    assert {path.name for path in tmp_path.iterdir()} == {"figures", "index.html", "results.json", "results.md"}


def test_wrong_wishes_are_known_before_any_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "train", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(QueryError, match="a number below 360"):
        reproduce(CnnOptions("digits", index=("360",)), tmp_path / "out")
    with pytest.raises(UnknownName, match="no data set 'mnist'; choose from 'cifar-10', 'digits'"):
        reproduce(CnnOptions("mnist"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("steps", "expected"), [(30, (30, 30)), (None, (220, 100))])
def test_steps_are_whole_epochs_unless_chosen(steps: int | None, expected: tuple[int, int]) -> None:
    plan = make_plan(CnnOptions("digits", steps=steps), digits.load())
    assert (plan.steps, plan.steps_in_turn) == expected
