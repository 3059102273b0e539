"""A training on the handwritten digits that can be run again, and runs of it.

    run = digits(path)
    dualform.load(run, recipe=recipe())

As the command line names it: --recipe tests.recipe_runs:recipe
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import dualform
from dualform.datasets.digits import CLASS_NAMES, IMAGE_SHAPE, load
from dualform.datasets.images import standardised
from dualform.inputs import INPUTS, save_inputs
from dualform.recipe.batches import ShuffledEpochs

RECIPE, MODEL = "tests.recipe_runs:recipe", "tests.recipe_runs:network"
STEPS, BATCH = 60, 32


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def recipe(lr: float = 0.1) -> dualform.Recipe:
    digits = load()
    images, labels = standardised(digits.train.raw, by=digits.train.raw), digits.train.labels
    rows = ShuffledEpochs(len(labels), BATCH, seed=0).rows

    def batch(step: int) -> dict[str, Any]:
        ids = rows(step)
        return {"id": ids, "image": images[ids], "label": labels[ids], "parity": ["even", "odd"][step % 2]}

    return dualform.Recipe(
        model=network,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(model(batch["image"]), batch["label"], reduction="none"),
        tags=["label", "parity"],
    )


def slower() -> dualform.Recipe:
    """Not the one that runs were trained by: its first batch has the same examples, its steps are others."""
    return recipe(lr=0.01)


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
