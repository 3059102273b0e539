"""The claim: influence from the recording alone predicts retraining better than what is used for that elsewhere.

    python -m benchmarks.faithfulness --data data
    python -m benchmarks.faithfulness --quick       # digits only, fewer trainings

Small MLPs are trained by recipes: digits (1,400 examples, 64-64-64-10, 600 steps of 32; SGD with momentum at 0.01 and
at 0.003, Adam at 1e-3; pixels standardised one by one) and MNIST (2,048 examples, 784-128-128-10, 320 steps of 64; SGD
at 0.01, Adam at 3e-4). Outputs are the margins of 64 random test images. Each network is trained again 64 times without
a random half, tenth and hundredth of its examples, weighted by 0, in the same order. The number is the linear
datamodeling score: for each output the rank correlation, over these trainings, between the sum of a method's scores of
the examples that were kept and what came out; the mean over outputs. Methods get all they ask for
(benchmarks/predictors.py): TracIn ten checkpoints; the best of several settings, anew for each number, TRAK, LoGra and
EK-FAC; attention the best layer. Costs are those of one setting: seconds to prepare (of a recording, what it added to
the training), seconds for all 64 outputs, both together in recorded trainings, and what is kept between questions.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from benchmarks.command import run as run_command
from benchmarks.machine import machine
from benchmarks.predictors import METHODS, Prediction
from dualform.datasets import image_catalogue
from dualform.influence.calibrate import rank_correlation
from dualform.recipe.batches import ShuffledEpochs
from dualform.recipe.repeatable import repeatable
from dualform.recipe.training import Training

DROPS = (0.5, 0.1, 0.01)
_OUTPUTS = 64


@dataclass(frozen=True)
class Subject:
    """A training, and the outputs that are asked about."""

    images: Tensor  # (examples, pixels)
    labels: Tensor
    tests: Tensor  # (outputs, pixels)
    classes: Tensor  # (outputs,)
    widths: tuple[int, ...]
    batch: int
    steps: int
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]

    def network(self) -> nn.Sequential:
        """Make the network."""
        linear = [nn.Linear(a, b) for a, b in zip(self.widths, self.widths[1:], strict=False)]
        return nn.Sequential(*(m for one in linear[:-1] for m in (one, nn.ReLU())), linear[-1])

    def recipe(self) -> dualform.Recipe:
        """Return the recipe."""
        rows = ShuffledEpochs(len(self.images), self.batch, seed=0)

        def batch(step: int) -> dict[str, Tensor]:
            ids = rows.rows(step)
            return {"id": ids, "images": self.images[ids], "label": self.labels[ids]}

        def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
            return F.cross_entropy(model(batch["images"]), batch["label"], reduction="none")

        return dualform.Recipe(self.network, self.optimizer, batch, losses, tags=["label"])

    def margins(self, model: nn.Module) -> Tensor:
        """Return the outputs that are compared."""
        with torch.no_grad():
            logits = model(self.tests).double()
        rest = logits.scatter(1, self.classes[:, None], -torch.inf)
        margins: Tensor = logits.gather(1, self.classes[:, None])[:, 0] - rest.logsumexp(dim=1)
        return margins


def subjects(data: Path | None, quick: bool) -> dict[str, Subject]:
    """Return what is trained: digits, and MNIST where there are its files."""
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # noqa: E731
    digits = image_catalogue.load("digits", None)
    raw, tests = digits.train.raw.float(), digits.test.raw.float()
    mean, size = raw.mean(dim=0), raw.std(dim=0) + 0.1
    chosen = torch.randperm(len(tests), generator=torch.Generator().manual_seed(5))[:_OUTPUTS]
    of_digits = ((raw - mean) / size)[:1400], digits.train.labels[:1400], ((tests - mean) / size)[chosen]
    small = (*of_digits, digits.test.labels[chosen], (64, 64, 64, 10), 32, 600)
    known = {"digits, SGD": Subject(*small, sgd)}
    if quick:
        return known
    slow = lambda model: torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)  # noqa: E731
    known["digits, SGD at 0.003"] = Subject(*small, slow)
    known["digits, Adam"] = Subject(*small, lambda model: torch.optim.Adam(model.parameters(), lr=1e-3))
    if data is None:
        return known
    mnist = image_catalogue.load("mnist", data)
    pixels = mnist.train.raw[:2048].float()
    tests, mean, size = mnist.test.raw.float(), pixels.mean(), pixels.std()
    chosen = torch.randperm(len(tests), generator=torch.Generator().manual_seed(5))[:_OUTPUTS]
    large = (
        (pixels - mean) / size, mnist.train.labels[:2048], ((tests - mean) / size)[chosen], mnist.test.labels[chosen],
        (784, 128, 128, 10), 64, 320,
    )  # fmt: skip
    known["MNIST, SGD"] = Subject(*large, sgd)
    known["MNIST, Adam"] = Subject(*large, lambda model: torch.optim.Adam(model.parameters(), lr=3e-4))
    return known


@dataclass(frozen=True)
class Trained:
    """A recorded training, and what the same gives without some examples."""

    subject: Subject
    memory: dualform.Memory
    model: nn.Sequential
    truth: Mapping[float, tuple[Tensor, Tensor]]  # by share: examples that are kept (runs, examples), outputs
    seconds: float  # of the recorded training
    plain_seconds: float  # of one that is not recorded

    def lds(self, per_example: Tensor) -> dict[str, float]:
        """Return the measure of scores (outputs, examples), by share."""
        return {
            f"{share:g}": rank_correlation(kept @ per_example.double().T, out)
            for share, (kept, out) in self.truth.items()
        }


def train(subject: Subject, path: Path, runs: int) -> Trained:
    """Train, record, and train again without random examples."""
    recipe = subject.recipe()
    began = perf_counter()
    recipe.train(path, subject.steps, dtype="float32", threads=1)
    seconds, truth = perf_counter() - began, {}
    began = perf_counter()
    _trained(recipe, subject.steps)
    plain = perf_counter() - began
    for share in DROPS:
        generator = torch.Generator().manual_seed(round(1000 * share))
        count, kept = max(1, round(share * len(subject.images))), []
        outputs = []
        for _ in range(runs):
            weights = torch.ones(len(subject.images), dtype=torch.float64)
            weights[torch.randperm(len(weights), generator=generator)[:count]] = 0
            outputs.append(subject.margins(_trained(recipe.weighed(_of_ids(weights)), subject.steps)))
            kept.append(weights)
        truth[share] = torch.stack(kept), torch.stack(outputs)
    memory = dualform.load(path, recipe=recipe)
    model = memory.model(subject.network()).eval()
    assert isinstance(model, nn.Sequential)
    return Trained(subject, memory, model, truth, seconds, plain)


def _of_ids(weights: Tensor) -> Callable[[Mapping[str, Any]], Tensor]:
    return lambda batch: weights[batch["id"]]


def _trained(recipe: dualform.Recipe, steps: int) -> nn.Module:
    with repeatable(1):
        training = Training(recipe)
        for _ in range(steps):
            training.take_step()
    return training.model.eval()


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    results: dict[str, Any] = {}
    for name, subject in subjects(data, quick).items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
            trained = train(subject, Path(directory) / "run", 16 if quick else 64)
            results[name] = {method: measured(trained, ask) for method, ask in METHODS.items()}
    return {"quick": quick, "machine": machine(), "subjects": results}


def measured(trained: Trained, ask: Callable[[Trained], Prediction]) -> dict[str, Any]:
    """Return how well a method predicts, and what it took."""
    try:
        prediction = ask(trained)
    except ImportError as missing:
        return {"missing": str(missing)}
    several = [trained.lds(scores) for scores in prediction.scores]
    return {
        "lds": {share: max(each[share] for each in several) for share in several[0]},
        "prepare": prediction.prepare,
        "ask": prediction.ask,
        "trainings": (prediction.prepare + prediction.ask) / trained.seconds,
        "kept": prediction.kept,
    }


def report(results: dict[str, Any]) -> str:
    lines = []
    for name, methods in results["subjects"].items():
        lines += [f"{name}: without 1/2, 1/10, 1/100 of the examples; seconds to prepare, to ask; trainings; MB kept"]
        for method, result in methods.items():
            if "missing" in result:
                lines.append(f"  {method:36s} not measured: {result['missing']}")
                continue
            numbers = "  ".join(f"{value:5.2f}" for value in result["lds"].values())
            took = f"{result['prepare']:6.1f} s {result['ask']:6.1f} s {result['trainings']:6.1f}"
            lines.append(f"  {method:36s} {numbers}   {took}  {result['kept'] / 1e6:8.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command("faithfulness", __doc__, measure, report)
