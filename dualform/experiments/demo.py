"""The demo: train a small network on handwritten digits, and ask what is behind its predictions.

    outcome = run("runs/demo")
    outcome.certificate, outcome.trained.accuracy
    outcome.explanations[0].top["output"]

Everything it needs comes with the package, and it takes seconds.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from dualform import plots
from dualform.datasets.digits import CLASS_NAMES, IMAGE_SHAPE, load
from dualform.datasets.images import ImageSet, standardised
from dualform.experiments.loops import INPUTS, epochs, one_thread, save_inputs, seeded
from dualform.store import Run
from dualform.table import Table

MODEL = "dualform.experiments.demo:network"
PNG, PDF = "spotlight.png", "spotlight.pdf"
STEPS = 1300
BATCH = 32
ABOUT = {"model": MODEL, "inputs": INPUTS, "class_names": list(CLASS_NAMES), "image_shape": list(IMAGE_SHAPE)}


def network() -> nn.Module:
    """64 pixels, two hidden layers of 128, ten classes."""
    return nn.Sequential(
        OrderedDict(
            hidden1=nn.Linear(64, 128),
            relu1=nn.ReLU(),
            hidden2=nn.Linear(128, 128),
            relu2=nn.ReLU(),
            output=nn.Linear(128, 10),
        )
    )


@dataclass(frozen=True)
class Trained:
    """A trained network with what it was trained and tested on."""

    model: nn.Module
    digits: ImageSet
    inputs: Tensor  # the test set as the network sees it, (360, 64)
    predictions: Tensor  # of the test set, (360,)

    @property
    def accuracy(self) -> float:
        return float((self.predictions == self.digits.test.labels).float().mean())


def train(
    path: str | Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda step: None,
) -> Trained:
    """Train and record; the same seed gives the same run. `progress` is called with each step's number."""
    digits = load()
    model = seeded(network, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = standardised(digits.train.raw, by=digits.train.raw), digits.train.labels
    with (
        one_thread(),
        dualform.record(model, optimizer, path, dtype="float32", overwrite=overwrite, about=ABOUT) as recorder,
    ):
        for step, ids in enumerate(epochs(len(labels), BATCH, steps, seed)):
            recorder.tag(id=ids, label=labels[ids])
            loss = F.cross_entropy(model(images[ids]), labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress(step)
    inputs = standardised(digits.test.raw, by=digits.train.raw)
    save_inputs(
        Path(path),
        inputs=inputs,
        labels=digits.test.labels,
        images=digits.test.raw,
        training_images=digits.train.raw,
    )
    with torch.no_grad():
        return Trained(model, digits, inputs, model(inputs).argmax(dim=1))


def chosen(predictions: Tensor, labels: Tensor, count: int = 3) -> list[int]:
    """The first misclassified digit, if there is any, then the first correct ones, each of a new class."""
    wrong = torch.nonzero(predictions != labels).flatten().tolist()
    right = torch.nonzero(predictions == labels).flatten().tolist()
    picked: list[int] = []
    seen: set[int] = set()
    for index in [*wrong[:1], *right]:
        if int(labels[index]) not in seen:
            picked.append(index)
            seen.add(int(labels[index]))
    return picked[:count]


@dataclass(frozen=True)
class Explanation:
    """What is behind one prediction: per layer, the top training digits and the attention per class."""

    index: int  # of the digit in the test set
    predicted: int
    true: int
    top: dict[str, Table]
    totals: dict[str, Table]

    def to_dict(self) -> dict[str, Any]:
        layers = {
            name: {"totals": list(self.totals[name].rows()), "top": list(self.top[name].rows())} for name in self.top
        }
        return {"index": self.index, "predicted": self.predicted, "true": self.true, "layers": layers}


def explain(memory: dualform.Memory, trained: Trained, indices: Sequence[int], top: int = 5) -> list[Explanation]:
    """Ask the memory about test digits; visits to the same training digit are summed."""
    spotlight = memory.attend(trained.model, trained.inputs[list(indices)])
    answers = spotlight.collect(dualform.Top(top, per="id"), dualform.Total(by="label"))
    return [
        Explanation(
            index=index,
            predicted=int(trained.predictions[index]),
            true=int(trained.digits.test.labels[index]),
            top={layer: found.where(query=row) for layer, (found, _) in answers.items()},
            totals={layer: totals.where(query=row) for layer, (_, totals) in answers.items()},
        )
        for row, index in enumerate(indices)
    ]


def picture(images: Tensor, rows: int | NDArray[Any]) -> NDArray[Any]:
    """Raw images as pictures: (8, 8), or (rows, 8, 8)."""
    found: NDArray[Any] = images.numpy()[rows]
    return found.reshape(*np.shape(rows), *IMAGE_SHAPE)


def figure(explanation: Explanation, digits: ImageSet) -> Any:
    """A matplotlib figure of one prediction and what is behind it."""
    subject = plots.Subject(picture(digits.test.raw, explanation.index), explanation.predicted, explanation.true)
    rows = [
        plots.LayerRow(layer, top, picture(digits.train.raw, top["id"]), explanation.totals[layer])
        for layer, top in explanation.top.items()
    ]
    question = "Which training digits are behind this prediction?"
    if explanation.predicted != explanation.true:
        question = (
            f"This {explanation.true} was taken for a {explanation.predicted}. Which training digits are behind that?"
        )
    return plots.spotlight_figure(subject, rows, title=question)


@dataclass(frozen=True)
class Outcome:
    """What the demo has to tell."""

    path: Path
    trained: Trained
    certificate: dualform.Certificate
    explanations: list[Explanation]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "accuracy": self.trained.accuracy,
            "certificate": self.certificate.to_dict(),
            "digits": [one.to_dict() for one in self.explanations],
            "files": [str(self.path / name) for name in (PNG, PDF, INPUTS)],
        }


def run(
    path: str | Path,
    *,
    steps: int = STEPS,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda step: None,
) -> Outcome:
    """Train, verify, ask about a few test digits, and draw the answers beside the run."""
    plots.require()
    path = Path(path)
    trained = train(path, steps=steps, overwrite=overwrite, progress=progress)
    memory = dualform.load(path)
    explanations = explain(memory, trained, chosen(trained.predictions, trained.digits.test.labels))
    figures = [figure(one, trained.digits) for one in explanations]
    figures[0].savefig(path / PNG)
    plots.save_pages(figures, path / PDF)
    return Outcome(path, trained, memory.verify(), explanations)


def is_demo(path: Path) -> bool:
    """Whether a directory holds a run of this demo, which may be replaced without asking."""
    try:
        return Run(path).manifest.about.get("model") == MODEL
    except dualform.DualformError:
        return False
