"""Recipes that runs name: made again from what the run says, and refused where that is forged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import dualform
from dualform.companions import TRUSTED_RECIPES, named_recipe, own_recipe
from dualform.datasets import image_catalogue, text_catalogue
from dualform.errors import DataError, QueryError, UnknownName
from dualform.experiments import demo
from dualform.experiments.language import training as language
from dualform.experiments.language.plan import LANGUAGE_EXPERIMENTS, LanguageOptions, hyperparameters_for
from dualform.experiments.loops import SNAPSHOTS
from dualform.experiments.plan import IMAGE_EXPERIMENTS, make_phases, names_of_tasks
from dualform.experiments.recipes import convolutional_recipe, image_recipe, language_recipe, named
from dualform.experiments.tasks import tasks
from dualform.experiments.training import SMALL, train

pytestmark = pytest.mark.slow

REMEDY = "pass --recipe PACKAGE:FACTORY"
SINGLE = {"experiment": "single", "dataset": "digits", "seed": 0, "steps": [4]}


def check_trained_again(path: Path) -> None:
    """Compare a training without nobody, by the recipe that the run names, with the model that the run ends with."""
    memory = dualform.load(path)
    recipe = own_recipe(memory)
    memory = dualform.load(path, recipe=recipe)
    layer, example = memory.layers[0], recipe.batch(0)["id"][0].item()
    assert memory.slots(layer) > 0
    again = dict(memory.retrain(weights={example: 1.0}).named_parameters())
    other = dict(memory.retrain(without={"id": [example]}).named_parameters())
    trained = memory.model(recipe.model())
    for name, parameter in trained.named_parameters():
        assert_close(again[name], parameter, rtol=0, atol=0)
    assert any(not torch.equal(other[name], parameter) for name, parameter in trained.named_parameters())


def train_images(path: Path, experiment: str, keep: str = "snapshots", **about: Any) -> Path:
    described = IMAGE_EXPERIMENTS[experiment]
    on = tasks([image_catalogue.load(name) for name in names_of_tasks(described, "digits")])
    steps = [4] * len(described.steps)
    about = {**named(image_recipe, experiment=experiment, dataset="digits", seed=0, steps=steps), **about}
    train(make_phases(described, on, steps), SMALL, seed=0, path=path, keep=keep, about=about)
    return path


@pytest.mark.parametrize("keep", ["slots", "snapshots"])
@pytest.mark.parametrize("experiment", IMAGE_EXPERIMENTS)
def test_classifiers_are_trained_again(tmp_path: Path, experiment: str, keep: str) -> None:
    check_trained_again(train_images(tmp_path / "run", experiment, keep))


def test_the_demo_is_trained_again(tmp_path: Path) -> None:
    demo.train(tmp_path / "run", optimizer="muon", steps=4)
    check_trained_again(tmp_path / "run")


@pytest.mark.parametrize("kept", [language.KEYS, language.VALUES, SNAPSHOTS])
@pytest.mark.parametrize("experiment", LANGUAGE_EXPERIMENTS)
def test_language_models_are_trained_again(tmp_path: Path, experiment: str, kept: str) -> None:
    described = LANGUAGE_EXPERIMENTS[experiment]
    text, _ = described.texts(text_catalogue.load("topics"))
    hparams = hyperparameters_for(described, LanguageOptions(hidden=8, steps=3))
    about = named(language_recipe, experiment=experiment, dataset="topics", seed=0, hidden=8)
    language.train(text, hparams, tmp_path / "run", seed=0, kept=kept, about=about)
    path = tmp_path / "run"
    if kept != language.KEYS:
        check_trained_again(path)
        return
    memory = dualform.load(path, recipe=own_recipe(dualform.load(path)))
    trained, again = memory.model(own_recipe(memory).model()), memory.retrain(weights={0: 1.0})
    assert_close(dict(again.named_parameters()), dict(trained.named_parameters()), rtol=0, atol=0)


FORGED: list[dict[str, Any]] = [
    {"recipe": "evil:recipe"},
    {"recipe": "dualform.experiments.training:train"},
    {"recipe": "dualform.experiments.reproduce:reproduce"},
    {"recipe": ["dualform.experiments.demo:recipe"]},
    {"recipe": 7},
    {"recipe": None},
    {"recipe_arguments": None},
    {"recipe_arguments": [SINGLE]},
    {"recipe_arguments": {}},
    {"recipe_arguments": {**SINGLE, "data": "/etc"}},
    {"recipe_arguments": {**SINGLE, "dataset": "../mnist"}},
    {"recipe_arguments": {**SINGLE, "dataset": ["digits"]}},
    {"recipe_arguments": {**SINGLE, "experiment": "demo"}},
    {"recipe_arguments": {**SINGLE, "seed": -1}},
    {"recipe_arguments": {**SINGLE, "seed": True}},
    {"recipe_arguments": {**SINGLE, "seed": 10**30}},
    {"recipe_arguments": {**SINGLE, "steps": 4}},
    {"recipe_arguments": {**SINGLE, "steps": []}},
    {"recipe_arguments": {**SINGLE, "steps": [4, 4]}},
    {"recipe_arguments": {**SINGLE, "steps": [4.0]}},
    {"recipe_arguments": {**SINGLE, "steps": [1] * 10**5}},
    {"recipe": "dualform.experiments.demo:recipe", "recipe_arguments": {"optimizer": "lion", "seed": 0}},
    {
        "recipe": "dualform.experiments.demo:recipe",
        "recipe_arguments": {"optimizer": "sgd", "seed": 0},
    },  # another model
    *(
        {
            "recipe": "dualform.experiments.recipes:language_recipe",
            "recipe_arguments": {"experiment": "charlm", "dataset": "topics", "seed": 0, "hidden": hidden},
        }
        for hidden in (8, 10**9)
    ),
    *(
        {
            "recipe": "dualform.experiments.recipes:convolutional_recipe",
            "recipe_arguments": {"training": training, "dataset": "digits", "seed": 0, "steps": steps},
        }
        for training, steps in (("whole", 0), ("best", 4), ("last-epoch", 10**9))
    ),
]


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_what_is_forged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("open('owned', 'w').close()\n")
    memory = dualform.load(train_images(tmp_path / "run", "single", **forged))
    with pytest.raises(QueryError, match=REMEDY):
        own_recipe(memory)
    assert not (tmp_path / "owned").exists()


def test_data_are_looked_for_where_the_user_says(tmp_path: Path) -> None:
    path = train_images(tmp_path / "run", "single", recipe_arguments={**SINGLE, "dataset": "mnist"})
    with pytest.raises(DataError, match="there is no data directory"):
        own_recipe(dualform.load(path), data=tmp_path / "nowhere")


def test_more_steps_than_any_training_has_cost_nothing(tmp_path: Path) -> None:
    arguments = {**SINGLE, "steps": [(1 << 31) - 1]}
    path = train_images(tmp_path / "run", "single", recipe_arguments=arguments)
    check_trained_again(path)


def test_trusted_recipes_are_there() -> None:
    functions = (demo.recipe, image_recipe, convolutional_recipe, language_recipe)
    assert {named(function)["recipe"] for function in functions} == {*TRUSTED_RECIPES}


def test_a_recipe_of_the_user_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_training.py").write_text(
        "from dualform.experiments.demo import network, recipe\n"
        "def mine(): return recipe('sgd', 3)\n"
        "def needy(seed): return recipe('sgd', seed)\n"
    )
    assert named_recipe("my_training:mine").seed == 3
    with pytest.raises(QueryError, match="--recipe must be PACKAGE:FACTORY, such as"):
        named_recipe("my_training")
    with pytest.raises(UnknownName, match="factory in my_training called 'other'"):
        named_recipe("my_training:other")
    with pytest.raises(QueryError, match="my_training:needy does not make a recipe: TypeError"):
        named_recipe("my_training:needy")
    with pytest.raises(QueryError, match="must make a dualform.Recipe, it made a Sequential"):
        named_recipe("my_training:network")
