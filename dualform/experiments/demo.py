"""The demo: train a small network on handwritten digits, and ask what is behind its predictions.

    outcome = run("runs/demo")
    outcome.certificate, outcome.trained.accuracy
    outcome.explanations[0].top["output"]               # attention
    outcome.explanations[0].contributions.highest()     # what speaks for the predicted class

Everything it needs comes with the package, and it takes seconds.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from dualform.errors import UnknownName
from dualform.experiments.loops import epochs, one_thread, seeded
from dualform.inputs import INPUTS, save_inputs

MODEL = "dualform.experiments.demo:network"
PNG, CONTRIBUTION_PNG, PDF = "spotlight.png", "contribution.png", "spotlight.pdf"
STEPS = 1300
BATCH = 32
SHOWN = 5  # training digits, of each kind
OUTPUT = "output"  # the layer that computes the logits
ABOUT = {"model": MODEL, "inputs": INPUTS, "class_names": list(CLASS_NAMES), "image_shape": list(IMAGE_SHAPE)}

# Each with a learning rate at which the demo's few steps suffice.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2),
    "nadam": partial(torch.optim.NAdam, lr=1e-3),
    "radam": partial(torch.optim.RAdam, lr=2e-3),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
}


def known(optimizer: str) -> str:
    """An optimiser's name as it is listed, however it was written."""
    if optimizer.lower() not in OPTIMIZERS:
        raise UnknownName("optimiser", optimizer, OPTIMIZERS)
    return optimizer.lower()


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
class DigitClassifier:
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
    optimizer: str = "sgd",
    steps: int = STEPS,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda step: None,
) -> DigitClassifier:
    """Train and record; the same seed gives the same run. `progress` is called with each step's number."""
    make = OPTIMIZERS[known(optimizer)]
    digits = load()
    model = seeded(network, seed)
    stepper = make(model.parameters())
    images, labels = standardised(digits.train.raw, by=digits.train.raw), digits.train.labels
    with (
        one_thread(),
        dualform.record(model, stepper, path, dtype="float32", overwrite=overwrite, about=ABOUT) as recorder,
    ):
        for step, ids in enumerate(epochs(len(labels), BATCH, steps, seed)):
            recorder.tag(id=ids, label=labels[ids])
            loss = F.cross_entropy(model(images[ids]), labels[ids])
            stepper.zero_grad()
            loss.backward()
            stepper.step()
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
        return DigitClassifier(model, digits, inputs, model(inputs).argmax(dim=1))


def select_digits(predictions: Tensor, labels: Tensor, count: int = 3) -> list[int]:
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
class Contributions:
    """What the logit of the predicted class is made of: `initial` and all contributions add up to it."""

    target: int  # the predicted class
    initial: float
    logit: float
    totals: dualform.Table  # per class of training digits: label, total
    digits: dualform.Table  # a training digit a row, summed over its visits: id, label, attention, contribution

    def highest(self, count: int = SHOWN) -> dualform.Table:
        """The training digits that speak most for the class."""
        return self._ranked(-self.digits["contribution"], count)

    def lowest(self, count: int = SHOWN) -> dualform.Table:
        """The training digits that speak most against the class, or least for it if none does."""
        return self._ranked(self.digits["contribution"], count)

    def _ranked(self, by: NDArray[Any], count: int) -> dualform.Table:
        best = np.argsort(by, kind="stable")[:count]
        return dualform.Table({name: column[best] for name, column in self.digits.as_arrays().items()})

    def to_dict(self) -> dict[str, Any]:
        tables = {"totals": self.totals, "for": self.highest(), "against": self.lowest()}
        numbers = {"layer": OUTPUT, "target": self.target, "initial": self.initial, "logit": self.logit}
        return numbers | {name: list(table.rows()) for name, table in tables.items()}


@dataclass(frozen=True)
class Explanation:
    """What is behind one prediction: per layer, the top training digits and the attention per class; contributions."""

    index: int  # of the digit in the test set
    predicted: int
    true: int
    top: dict[str, dualform.Table]
    totals: dict[str, dualform.Table]
    contributions: Contributions

    def to_dict(self) -> dict[str, Any]:
        layers = {
            name: {"totals": list(self.totals[name].rows()), "top": list(self.top[name].rows())} for name in self.top
        }
        about = {"index": self.index, "predicted": self.predicted, "true": self.true}
        return about | {"layers": layers, "contribution": self.contributions.to_dict()}


def explain(
    memory: dualform.Memory, trained: DigitClassifier, indices: Sequence[int], top: int = SHOWN
) -> list[Explanation]:
    """Ask the memory about test digits; visits to the same training digit are summed."""
    spotlight = memory.attend(trained.model, trained.inputs[list(indices)])
    answers = spotlight.collect(dualform.Top(top, per="id"), dualform.Total(by="label"))
    predictions = [int(trained.predictions[index]) for index in indices]
    behind = contributions(spotlight[OUTPUT], predictions)
    return [
        Explanation(
            index=index,
            predicted=predictions[row],
            true=int(trained.digits.test.labels[index]),
            top={layer: found.where(query=row) for layer, (found, _) in answers.items()},
            totals={layer: totals.where(query=row) for layer, (_, totals) in answers.items()},
            contributions=behind[row],
        )
        for row, index in enumerate(indices)
    ]


def contributions(layer: dualform.LayerSpotlight, targets: Sequence[int]) -> list[Contributions]:
    """What is behind the logit of one class for each query: no digit is left out, so lowest ones are known too."""
    asked = layer.contribution(targets)
    each = dualform.Total(by=("id", "label"))
    totals, digits = asked.collect(dualform.Total(by="label"), each)
    (attention,) = layer.collect(each)
    sums = {"attention": attention["total"], "contribution": digits["total"]}
    both = dualform.Table(digits.without("total").as_arrays() | sums)
    numbers = zip(targets, asked.initial().tolist(), asked.output().tolist(), strict=True)
    return [
        Contributions(*one, *(table.where(query=row).without("query") for table in (totals, both)))
        for row, one in enumerate(numbers)
    ]


def picture(images: Tensor, rows: int | NDArray[Any]) -> NDArray[Any]:
    """Raw images as pictures: (8, 8), or (rows, 8, 8)."""
    found: NDArray[Any] = images.numpy()[rows]
    return found.reshape(*np.shape(rows), *IMAGE_SHAPE)


def figure(explanation: Explanation, digits: ImageSet) -> Any:
    """A matplotlib figure of one prediction and the training digits that get attention."""
    rows = [
        plots.LayerRow(layer, top, picture(digits.train.raw, top["id"]), explanation.totals[layer])
        for layer, top in explanation.top.items()
    ]
    question = _question(explanation, "Which training digits are behind {}?")
    return plots.spotlight_figure(_subject(explanation, digits), rows, title=question)


def contribution_figure(explanation: Explanation, digits: ImageSet) -> Any:
    """A matplotlib figure of one prediction: attention beside contribution, and how the logit adds up."""
    found = explanation.contributions
    parts = plots.LogitParts(found.digits, picture(digits.train.raw, found.digits["id"]), found.totals, found.initial)
    question = _question(explanation, "Which training digits speak for {}, which against?")
    return plots.contribution_figure(_subject(explanation, digits), parts, title=question)


def _subject(explanation: Explanation, digits: ImageSet) -> plots.Subject:
    return plots.Subject(picture(digits.test.raw, explanation.index), explanation.predicted, explanation.true)


def _question(explanation: Explanation, question: str) -> str:
    """Asked about the prediction or, if that is wrong, about the mistake."""
    if explanation.predicted == explanation.true:
        return question.format("this prediction")
    return f"This {explanation.true} was taken for a {explanation.predicted}. {question.format('that')}"


@dataclass(frozen=True)
class DemoResult:
    """What the demo has to tell."""

    path: Path
    optimizer: str
    trained: DigitClassifier
    certificate: dualform.Certificate
    explanations: list[Explanation]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "optimizer": self.optimizer,
            "accuracy": self.trained.accuracy,
            "certificate": self.certificate.to_dict(),
            "digits": [one.to_dict() for one in self.explanations],
            "files": [str(self.path / name) for name in (PNG, CONTRIBUTION_PNG, PDF, INPUTS)],
        }


def run(
    path: str | Path,
    *,
    optimizer: str = "sgd",
    steps: int = STEPS,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda step: None,
) -> DemoResult:
    """Train, verify, ask about a few test digits, and draw the answers beside the run."""
    plots.require_matplotlib()
    path = Path(path)
    trained = train(path, optimizer=optimizer, steps=steps, overwrite=overwrite, progress=progress)
    memory = dualform.load(path)
    with one_thread():
        explanations = explain(memory, trained, select_digits(trained.predictions, trained.digits.test.labels))
        certificate = memory.verify()
    draw(explanations, trained.digits, path)
    return DemoResult(path, known(optimizer), trained, certificate, explanations)


def draw(explanations: Sequence[Explanation], digits: ImageSet, path: Path) -> None:
    """Pictures of the first digit, and a PDF of them all."""
    first, *others = [figure(one, digits) for one in explanations]
    added_up = contribution_figure(explanations[0], digits)
    for name, one in {PNG: first, CONTRIBUTION_PNG: added_up}.items():
        one.savefig(path / name)
        one.set_layout_engine("none")  # it is laid out by now; a second time, for the PDF, would take as long again
    plots.save_pages([first, added_up, *others], path / PDF)


def is_demo(path: Path) -> bool:
    """Whether a directory holds a run of this demo, which may be replaced without asking."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a damaged run: it is about to go
        try:
            return dualform.load(path).about.get("model") == MODEL
        except dualform.DualformError:
            return False
