"""Trainings that can be run again, on handwritten digits and on a text, and runs of them.

    run = digits(path)
    dualform.load(run, recipe=recipe())

As the command line names it: --recipe tests.recipe_runs:recipe
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import dualform
from dualform.datasets.digits import CLASS_NAMES, IMAGE_SHAPE, load
from dualform.datasets.images import standardised
from dualform.experiments.language.network import FACTORY, LanguageModel
from dualform.inputs import INPUTS, save_inputs
from dualform.recipe.batches import ShuffledEpochs
from dualform.text import Text

RECIPE, MODEL = "tests.recipe_runs:recipe", "tests.recipe_runs:network"
STEPS, BATCH = 60, 32


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def recipe() -> dualform.Recipe:
    digits = load()
    images, labels = standardised(digits.train.raw, by=digits.train.raw), digits.train.labels
    rows = ShuffledEpochs(len(labels), BATCH, seed=0).rows

    def batch(step: int) -> dict[str, Any]:
        ids = rows(step)
        return {"id": ids, "image": images[ids], "label": labels[ids], "parity": ["even", "odd"][step % 2]}

    return dualform.Recipe(
        model=network,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(model(batch["image"]), batch["label"], reduction="none"),
        tags=["label", "parity"],
    )


def another() -> dualform.Recipe:
    """Not the one that runs were trained by."""
    return replace(recipe(), seed=1)


def nothing() -> int:
    return 3


def digits(path: Path, steps: int = STEPS, **options: Any) -> Path:
    """Train, with test inputs beside the run."""
    about = {"inputs": INPUTS, "class_names": list(CLASS_NAMES), "image_shape": list(IMAGE_SHAPE)}
    recipe().train(path, steps, threads=1, about=about, **options)
    data = load()
    save_inputs(
        path,
        inputs=standardised(data.test.raw, by=data.train.raw),
        labels=data.test.labels,
        images=data.test.raw,
        training_images=data.train.raw,
    )
    return path


# A model of characters, whose examples are stretches of a text

FABLE = "a wolf and a lamb came to a brook. the wolf stood high up the stream and the lamb a little below. " * 4
SPAN = 12
VOCABULARY = tuple(sorted({*FABLE}))
LANGUAGE_RECIPE = "tests.recipe_runs:language_recipe"


def language_recipe() -> dualform.Recipe:
    ids = torch.tensor([VOCABULARY.index(character) for character in FABLE])
    rows = ShuffledEpochs((len(ids) - 1) // SPAN, 4, seed=0).rows

    def batch(step: int) -> dict[str, Any]:
        examples = rows(step)
        positions = examples[:, None] * SPAN + torch.arange(SPAN)  # (batch, span)
        return {"id": examples, "position": positions, "tokens": ids[positions], "next": ids[positions + 1]}

    return dualform.Recipe(
        model=lambda: LanguageModel(len(VOCABULARY), embedding=8, hidden=12),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(
            model(batch["tokens"])[0].transpose(1, 2), batch["next"], reduction="none"
        ),
        tags=["position"],
    )


def language(path: Path, steps: int = 40) -> Path:
    """Train, with the text beside the run."""
    arguments = {"vocabulary": len(VOCABULARY), "embedding": 8, "hidden": 12}
    about = {"model": FACTORY, "arguments": arguments, "text": "text.json"}
    language_recipe().train(path, steps, threads=1, about=about)
    ids = np.array([VOCABULARY.index(character) for character in FABLE])
    Text(ids, VOCABULARY, "", ((0, "First"), (len(ids) // 2, "Second"))).save(path / "text.json")
    return path
