"""Draws the figure of docs/guides/influence.md: one test digit, asked about in five ways.

    python -m benchmarks.five_answers docs/guides/five-answers.png

The network and the training are those of that page. The test image is the one that is rightly classified by the
smallest margin. By class of the training images: attention in the last layer, contributions to the logit over all
layers, and the change of the margin that muting, influence and retraining tell: the output as it is, less the output
without the class.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform import plots
from dualform.datasets.digits import load
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = 600


def figure(steps: int = _STEPS) -> "Figure":
    """Train, ask in all five ways, and draw."""
    digits = load()
    raw, unseen = digits.train.raw.float(), digits.test.raw.float()
    mean, size = raw.mean(dim=0), raw.std(dim=0) + 0.1
    images, labels, tests = (raw - mean) / size, digits.train.labels, (unseen - mean) / size

    def batch(step: int) -> dict[str, Tensor]:
        ids = torch.randperm(len(images))[:32]
        return {"id": ids, "images": images[ids], "label": labels[ids]}

    def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["images"]), batch["label"], reduction="none")

    recipe = dualform.Recipe(
        model=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        batch=batch,
        losses=losses,
        tags=["label"],
    )
    with TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        model = recipe.train(run, steps, dtype="float32", threads=1).eval()
        memory = dualform.load(run, recipe=recipe)
        margins = margins_of(model, tests, digits.test.labels)
        index = int(torch.where(margins > 0, margins, torch.inf).argmin())
        true = int(digits.test.labels[index])
        case = plots.Case(digits.test.raw[index].view(8, 8).numpy() / 16, "digits", true, true, index)
        return plots.answers_per_class(
            case, answers(memory, model, tests[index : index + 1], true), plots.Tasks({"digits": list("0123456789")})
        )


def answers(memory: dualform.Memory, model: nn.Module, image: Tensor, true: int) -> dict[str, Table]:
    """Return what five ways of asking say of each class."""
    target = torch.tensor([true])
    now = margins_of(model, image, target)
    spotlight = memory.attend(model, image)
    last = list(spotlight)[-1]
    contributions = [spotlight[name].contribution(true).total(by="label")["total"] for name in spotlight]
    muted = [margins_of(memory.without(label=label).model(model), image, target) for label in range(10)]
    retrained = [margins_of(memory.retrain(without={"label": n}).eval(), image, target) for n in range(10)]
    influence = memory.influence(model, image, target).total(by="label")["total"]
    return {
        "attention: what is near, as the last layer sees it": _table(spotlight[last].total(by="label")["total"]),
        "contribution: what it has added to the logit": _table(np.sum(contributions, axis=0)),
        "muting: the margin as it is, less that without what the class has added": _table(now - torch.cat(muted)),
        "influence: the same in a training without the class, as estimated from the recording": _table(influence),
        "retraining: the same, by a training without the class": _table(now - torch.cat(retrained)),
    }


def margins_of(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return by how much the logit of a class is above all others."""
    with torch.no_grad():
        logits = model(images).double()
    rest = logits.scatter(1, classes[:, None], -torch.inf).logsumexp(dim=1)
    margins: Tensor = logits.gather(1, classes[:, None])[:, 0] - rest
    return margins


def _table(totals: Any) -> Table:
    return Table({"task": np.full(10, "digits"), "label": np.arange(10), "total": np.asarray(totals)})


if __name__ == "__main__":
    figure().savefig(sys.argv[1])
