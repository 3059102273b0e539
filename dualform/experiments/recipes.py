"""Recipes that runs of experiments name: made again from the names of an experiment and a data set.

    recipe = image_recipe("single", "digits", seed=0, steps=[400])
    named(image_recipe, experiment="single", dataset="digits", seed=0, steps=[400])    # goes with the run

Arguments are what JSON can hold, and never paths: where the data are, is for those to say who open the run.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dualform
from dualform.datasets import image_catalogue, text_catalogue
from dualform.errors import QueryError, UnknownName
from dualform.experiments import training
from dualform.experiments.cifar import training as convolutional
from dualform.experiments.cifar.images import as_task, halves
from dualform.experiments.cifar.network import OUTPUT
from dualform.experiments.cifar.plan import CnnOptions, dataset_of
from dualform.experiments.language import training as language
from dualform.experiments.language.plan import LANGUAGE_EXPERIMENTS, LanguageOptions
from dualform.experiments.language.plan import hyperparameters_for as language_hyperparameters
from dualform.experiments.loops import SNAPSHOTS
from dualform.experiments.plan import IMAGE_EXPERIMENTS, hyperparameters_for, make_phases, names_of_tasks
from dualform.experiments.tasks import tasks


def named(recipe: Callable[..., dualform.Recipe], **arguments: Any) -> dict[str, Any]:
    """Return what a run says of its recipe: the function that makes it, and its arguments."""
    return {"recipe": f"{recipe.__module__}:{recipe.__name__}", "recipe_arguments": arguments}


def image_recipe(
    experiment: str, dataset: str, seed: int, steps: list[int], data: Path | None = None
) -> dualform.Recipe:
    """Return how a classifier of the paper is trained.

    Args:
        experiment: one of IMAGE_EXPERIMENTS.
        dataset: as it was chosen: of the first task.
        seed: of the initial weights and the batches.
        steps: of each phase.
        data: where the data are, if not in one of the usual places.
    """
    if experiment not in IMAGE_EXPERIMENTS:
        raise UnknownName("experiment", experiment, IMAGE_EXPERIMENTS)
    described = IMAGE_EXPERIMENTS[experiment]
    on = tasks([image_catalogue.load(name, data) for name in names_of_tasks(described, dataset)])
    return training.training_recipe(make_phases(described, on, steps), hyperparameters_for(on), seed)


def convolutional_recipe(
    training: str, dataset: str, seed: int, steps: int, data: Path | None = None
) -> dualform.Recipe:
    """Return how a convolutional network is trained.

    The last epoch begins in the middle of a training: its model is made by training the steps before it, once.

    Args:
        training: which: "whole", "last-epoch" or "in-turn".
        dataset: one of the experiment's.
        seed: of the initial weights, the batches and how images are moved.
        steps: of the whole training, or on each half of the classes.
        data: where the data are, if not in one of the usual places.
    """
    known = (convolutional.WHOLE, convolutional.LAST_EPOCH, convolutional.IN_TURN)
    if training not in known:
        raise UnknownName("training", training, known)
    if steps < 1:
        raise QueryError(f"a training has at least one step, not {steps}")
    hparams = dataset_of(CnnOptions(dataset)).hparams
    task = as_task(image_catalogue.load(dataset, data))
    if training == convolutional.IN_TURN:
        return convolutional.training_recipe(halves(task), hparams, steps, seed)
    whole = convolutional.whole_recipe(task, hparams, steps, seed)
    if training == convolutional.WHOLE:
        return whole
    first = convolutional.last_epoch_begin(task, hparams, steps)

    @cache
    def start() -> convolutional.HalfTrained | None:
        with TemporaryDirectory(prefix="dualform-", ignore_cleanup_errors=True) as directory:
            return convolutional.train_until(whole, Path(directory) / "run", first, layers=OUTPUT, keep=SNAPSHOTS)

    return convolutional.rest_of(whole, first, start)


def language_recipe(experiment: str, dataset: str, seed: int, hidden: int, data: Path | None = None) -> dualform.Recipe:
    """Return how a language model is trained on a text of a data set.

    Args:
        experiment: one of LANGUAGE_EXPERIMENTS.
        dataset: the text's name.
        seed: of the initial weights and of dropout.
        hidden: width of the LSTM.
        data: where the data are, if not in one of the usual places.
    """
    if experiment not in LANGUAGE_EXPERIMENTS:
        raise UnknownName("experiment", experiment, LANGUAGE_EXPERIMENTS)
    described = LANGUAGE_EXPERIMENTS[experiment]
    text, _ = described.texts(text_catalogue.load(dataset, data))
    hparams = language_hyperparameters(described, LanguageOptions(dataset=dataset, hidden=hidden))
    return language.training_recipe(text, hparams, seed)
