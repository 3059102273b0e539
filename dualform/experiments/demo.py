"""Run the demo: train a small network on handwritten digits, and ask what is behind its predictions.

    result = run("runs/demo")
    result.certificate, result.classifier.accuracy
    result.explanations[0].top["output"]               # attention
    result.explanations[0].contributions.highest()     # training digits that speak for the predicted class

It needs no download, and takes seconds.
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
from dualform.experiments.loops import ShuffledEpochs, one_thread, seeded
from dualform.inputs import INPUTS, save_inputs

MODEL, RECIPE = "dualform.experiments.demo:network", "dualform.experiments.demo:recipe"
PNG, CONTRIBUTION_PNG, PDF = "spotlight.png", "contribution.png", "spotlight.pdf"
STEPS = 1300
BATCH = 32
_MAX_STEPS = 10**9  # batches are drawn as they are asked for
DIGITS_PER_ROW = 5  # training digits that are shown of each kind
OUTPUT = "output"  # the layer that computes the logits
ABOUT = {"model": MODEL, "inputs": INPUTS, "class_names": list(CLASS_NAMES), "image_shape": list(IMAGE_SHAPE)}

# Each with a learning rate at which the demo's few steps are enough.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2),
    "nadam": partial(torch.optim.NAdam, lr=1e-3),
    "radam": partial(torch.optim.RAdam, lr=2e-3),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "adafactor": partial(torch.optim.Adafactor, lr=1e-2),
    "adamax": partial(torch.optim.Adamax, lr=2e-3),
    "asgd": partial(torch.optim.ASGD, lr=0.2),
    "muon": partial(torch.optim.Muon, lr=1e-2),
    "rprop": partial(torch.optim.Rprop, lr=1e-3, step_sizes=(1e-6, 1e-2)),
}


def make_optimizers(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimiser of a name; two, if it steps hidden weights only: AdamW steps what is left, as is usual."""
    make = OPTIMIZERS[optimizer_name(name)]
    if optimizer_name(name) != "muon":
        return [make(model.parameters())]
    hidden = {n: p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith(OUTPUT)}
    rest = [parameter for n, parameter in model.named_parameters() if n not in hidden]
    return [make(hidden.values()), OPTIMIZERS["adamw"](rest)]


def optimizer_name(optimizer: str) -> str:
    """Return the name of an optimiser in lower case, as it is listed in OPTIMIZERS."""
    if optimizer.lower() not in OPTIMIZERS:
        raise UnknownName("optimiser", optimizer, OPTIMIZERS)
    return optimizer.lower()


def network() -> nn.Module:
    """Make the demo's network: 64 pixels, two hidden layers of 128, ten classes."""
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
    """A trained network with the digits that it was trained and tested on."""

    model: nn.Module
    digits: ImageSet
    inputs: Tensor  # standardised test digits, (360, 64)
    predictions: Tensor  # of the test digits, (360,)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test digits, between 0 and 1."""
        return float((self.predictions == self.digits.test.labels).float().mean())


def recipe(optimizer: str, seed: int) -> dualform.Recipe:
    """Return how the demo's network is trained; the same seed gives the same run.

    Args:
        optimizer: a key of OPTIMIZERS.
        seed: of the initial weights and the batches.
    """
    train, name = load().train, optimizer_name(optimizer)
    images, labels = standardised(train.raw, by=train.raw), train.labels
    epochs = ShuffledEpochs([(len(labels), _MAX_STEPS)], BATCH, torch.Generator().manual_seed(seed))

    def batch(step: int) -> dict[str, Tensor]:
        ids = epochs[step].rows
        return {"id": ids, "image": images[ids], "label": labels[ids]}

    return dualform.Recipe(
        model=lambda: seeded(network, seed),
        optimizer=lambda model: make_optimizers(name, model),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(model(batch["image"]), batch["label"], reduction="none"),
        tags=["label"],
        seed=seed,
    )


def train(
    path: str | Path,
    *,
    optimizer: str = "sgd",
    steps: int = STEPS,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda step: None,
) -> DigitClassifier:
    """Train and record.

    Args:
        path: of the run.
        optimizer: a key of OPTIMIZERS.
        steps: of training.
        seed: of the initial weights and the batches.
        overwrite: whether a run at the path is replaced.
        progress: called with the number of each finished step.
    """
    optimizer = optimizer_name(optimizer)
    digits = load()
    about = {**ABOUT, "recipe": RECIPE, "recipe_arguments": {"optimizer": optimizer, "seed": seed}}
    model = recipe(optimizer, seed).train(
        path, steps, dtype="float32", overwrite=overwrite, about=about, progress=progress, threads=1
    )
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
    """Return the first misclassified digit, if there is any, then the first correct ones, each of a new class."""
    wrong = torch.nonzero(predictions != labels).flatten().tolist()
    right = torch.nonzero(predictions == labels).flatten().tolist()
    first_of_class: dict[int, int] = {}
    for index in [*wrong[:1], *right]:
        first_of_class.setdefault(int(labels[index]), index)
    return list(first_of_class.values())[:count]


@dataclass(frozen=True)
class Contributions:
    """The parts of the predicted class's logit: `initial` and all contributions add up to it."""

    target: int  # the predicted class
    initial: float
    logit: float
    totals: dualform.Table  # by class of training digits: label, total
    digits: dualform.Table  # a row for each training digit, summed over its visits: id, label, attention, contribution

    def highest(self, count: int = DIGITS_PER_ROW) -> dualform.Table:
        """Return the training digits that speak most for the class."""
        return self._first(-self.digits["contribution"], count)

    def lowest(self, count: int = DIGITS_PER_ROW) -> dualform.Table:
        """Return the training digits that speak most against the class, or least for it if none does."""
        return self._first(self.digits["contribution"], count)

    def _first(self, order: NDArray[Any], count: int) -> dualform.Table:
        rows = np.argsort(order, kind="stable")[:count]
        return dualform.Table({name: column[rows] for name, column in self.digits.as_arrays().items()})

    def to_dict(self) -> dict[str, Any]:
        tables = {"totals": self.totals, "for": self.highest(), "against": self.lowest()}
        numbers = {"layer": OUTPUT, "target": self.target, "initial": self.initial, "logit": self.logit}
        return numbers | {name: list(table.rows()) for name, table in tables.items()}


@dataclass(frozen=True)
class ExplainedDigit:
    """What is behind one prediction: top training digits and attention by class of each layer, and contributions."""

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
    memory: dualform.Memory, classifier: DigitClassifier, indices: Sequence[int], top: int = DIGITS_PER_ROW
) -> list[ExplainedDigit]:
    """Explain the predictions of test digits; visits to the same training digit are summed."""
    spotlight = memory.attend(classifier.model, classifier.inputs[list(indices)])
    answers = spotlight.collect(dualform.Top(top, per="id"), dualform.Total(by="label"))
    predictions = [int(classifier.predictions[index]) for index in indices]
    parts = contributions(spotlight[OUTPUT], predictions)
    return [
        ExplainedDigit(
            index=index,
            predicted=predictions[row],
            true=int(classifier.digits.test.labels[index]),
            top={layer: slots.where(query=row) for layer, (slots, _) in answers.items()},
            totals={layer: totals.where(query=row) for layer, (_, totals) in answers.items()},
            contributions=parts[row],
        )
        for row, index in enumerate(indices)
    ]


def contributions(layer: dualform.LayerSpotlight, targets: Sequence[int]) -> list[Contributions]:
    """Return the parts of one class's logit for each query. All digits are in it, so that the lowest are known too."""
    contribution = layer.contribution(targets)
    by_digit = dualform.Total(by=("id", "label"))
    totals, digits = contribution.collect(dualform.Total(by="label"), by_digit)
    (attention,) = layer.collect(by_digit)
    sums = {"attention": attention["total"], "contribution": digits["total"]}
    both = dualform.Table(digits.without("total").as_arrays() | sums)
    numbers = zip(targets, contribution.initial().tolist(), contribution.output().tolist(), strict=True)
    return [
        Contributions(target, initial, logit, *(table.where(query=row).without("query") for table in (totals, both)))
        for row, (target, initial, logit) in enumerate(numbers)
    ]


def picture(images: Tensor, rows: int | NDArray[Any]) -> NDArray[Any]:
    """Return rows of raw images as pictures, (8, 8) or (rows, 8, 8)."""
    pixels: NDArray[Any] = images.numpy()[rows]
    return pixels.reshape(*np.shape(rows), *IMAGE_SHAPE)


def figure(explanation: ExplainedDigit, digits: ImageSet) -> Any:
    """Draw one prediction and the training digits with the highest attention."""
    rows = [
        plots.LayerRow(layer, top, picture(digits.train.raw, top["id"]), explanation.totals[layer])
        for layer, top in explanation.top.items()
    ]
    question = _question(explanation, "Which training digits are behind {}?")
    return plots.spotlight_figure(_subject(explanation, digits), rows, title=question)


def contribution_figure(explanation: ExplainedDigit, digits: ImageSet) -> Any:
    """Draw attention beside contribution for one prediction, and how the logit adds up."""
    logit = explanation.contributions
    parts = plots.LogitParts(logit.digits, picture(digits.train.raw, logit.digits["id"]), logit.totals, logit.initial)
    question = _question(explanation, "Which training digits speak for {}, which against?")
    return plots.contribution_figure(_subject(explanation, digits), parts, title=question)


def _subject(explanation: ExplainedDigit, digits: ImageSet) -> plots.Subject:
    return plots.Subject(picture(digits.test.raw, explanation.index), explanation.predicted, explanation.true)


def _question(explanation: ExplainedDigit, question: str) -> str:
    """Return a question about the prediction or, if that is wrong, about the mistake."""
    if explanation.predicted == explanation.true:
        return question.format("this prediction")
    return f"This {explanation.true} was taken for a {explanation.predicted}. {question.format('that')}"


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demo shows."""

    path: Path
    optimizer: str
    classifier: DigitClassifier
    certificate: dualform.Certificate
    explanations: list[ExplainedDigit]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "optimizer": self.optimizer,
            "accuracy": self.classifier.accuracy,
            "certificate": self.certificate.to_dict(),
            "digits": [explanation.to_dict() for explanation in self.explanations],
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
    """Train, verify, explain a few test digits, and draw the explanations.

    Args:
        path: of the run; figures go there, too.
        optimizer: a key of OPTIMIZERS.
        steps: of training.
        overwrite: whether a run at the path is replaced.
        progress: called with the number of each finished step.
    """
    plots.require_matplotlib()
    path = Path(path)
    classifier = train(path, optimizer=optimizer, steps=steps, overwrite=overwrite, progress=progress)
    memory = dualform.load(path)
    with one_thread():
        indices = select_digits(classifier.predictions, classifier.digits.test.labels)
        explanations = explain(memory, classifier, indices)
        certificate = memory.verify()
    draw(explanations, classifier.digits, path)
    return DemoResult(path, optimizer_name(optimizer), classifier, certificate, explanations)


def draw(explanations: Sequence[ExplainedDigit], digits: ImageSet, path: Path) -> None:
    """Save two figures of the first digit, and a PDF of all digits."""
    first, *others = [figure(explanation, digits) for explanation in explanations]
    contribution = contribution_figure(explanations[0], digits)
    for name, drawn in {PNG: first, CONTRIBUTION_PNG: contribution}.items():
        drawn.savefig(path / name)
        drawn.set_layout_engine("none")  # the layout is done; a second one, for the PDF, would take as long again
    plots.save_pages([first, contribution, *others], path / PDF)


def is_demo(path: Path) -> bool:
    """Return whether a directory holds a run of this demo, which may be replaced without asking."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a damaged run, which is replaced anyway
        try:
            return dualform.load(path).about.get("model") == MODEL
        except dualform.DualformError:
            return False
