"""The claim: influence from the recording alone predicts retraining better than what is used for that elsewhere.

    python -m benchmarks.faithfulness --data data
    python -m benchmarks.faithfulness --quick       # digits only, fewer trainings

Small MLPs are trained by recipes: digits (1,400 examples, 64-64-64-10, 600 steps of 32; SGD with momentum at 0.01, Adam
at 1e-3; pixels standardised one by one) and MNIST (2,048 examples, 784-128-128-10, 320 steps of 64; SGD at 0.01, Adam
at 3e-4). Outputs are the margins of 64 random test images. Each network is trained again 64 times without a random
half, tenth and hundredth of its examples, weighted by 0, in the same order. The number is the linear datamodeling
score: for each output the rank correlation, over these trainings, between the sum of a method's scores of the examples
that were kept and what came out; the mean over outputs. Methods get all they ask for: TracIn ten checkpoints, EK-FAC
the best damping of seven for each number, attention the best layer. `seconds` is all that a method takes for the 64
outputs, `trainings` the same as a multiple of one recorded training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import dualform
from benchmarks.command import run as run_command
from dualform.datasets import image_catalogue
from dualform.influence.calibrate import rank_correlation
from dualform.recipe.batches import ShuffledEpochs
from dualform.recipe.repeatable import repeatable
from dualform.recipe.training import Training

DROPS = (0.5, 0.1, 0.01)
_OUTPUTS, _CHECKPOINTS = 64, 10
_DAMPINGS = (None, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # None: kronfluence's own


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

    def scores(self, per_example: Tensor) -> dict[str, float]:
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
    return Trained(subject, memory, model, truth, seconds)


def _of_ids(weights: Tensor) -> Callable[[Mapping[str, Any]], Tensor]:
    return lambda batch: weights[batch["id"]]


def _trained(recipe: dualform.Recipe, steps: int) -> nn.Module:
    with repeatable(1):
        training = Training(recipe)
        for _ in range(steps):
            training.take_step()
    return training.model.eval()


# Methods: each returns scores (outputs, examples), positive for what speaks for the class


def attention(trained: Trained) -> Tensor:
    """Return attention in the layer that does best with half of the examples."""
    spotlight = trained.memory.attend(trained.model, trained.subject.tests)
    by_layer = [_by_id(trained, layer.total(by="id")) for layer in (spotlight[name] for name in spotlight)]
    return max(by_layer, key=lambda scores: trained.scores(scores)["0.5"])


def contribution(trained: Trained) -> Tensor:
    """Return contributions to the margins, over all layers."""
    from dualform.influence.ask import Wanted, asked_of_layers

    memory, subject = trained.memory, trained.subject
    asked, _ = asked_of_layers(
        memory._sources.view, trained.model, subject.tests, Wanted(subject.classes, "margin", None)
    )
    spotlight = memory.attend(trained.model, subject.tests)
    parts = [
        _by_id(trained, spotlight[name].contribution(own.directions).total(by="id")) for name, own in asked.items()
    ]
    return torch.stack(parts).sum(dim=0)


def influence(trained: Trained, **options: Any) -> Tensor:
    """Return our influence."""
    subject = trained.subject
    table = trained.memory.influence(trained.model, subject.tests, subject.classes, **options).examples
    return _by_id(trained, table)


def _by_id(trained: Trained, table: dualform.Table) -> Tensor:
    scores = torch.zeros(len(trained.subject.tests), len(trained.subject.images), dtype=torch.float64)
    rows, columns = torch.from_numpy(table["query"]), torch.from_numpy(table["id"].astype("int64"))
    return scores.index_put_((rows, columns), torch.from_numpy(table["total"]), accumulate=True)


def tracin(trained: Trained) -> Tensor:
    """Return captum's TracIn with ten checkpoints, over all layers."""
    from captum.influence import TracInCP

    subject, memory = trained.subject, trained.memory
    steps = [round(subject.steps * (i + 1) / _CHECKPOINTS) for i in range(_CHECKPOINTS)]
    states = {str(step): memory.until(step).model(subject.network()).state_dict() for step in steps}

    def load(model: nn.Module, name: str) -> float:
        model.load_state_dict(states[name])
        return 1.0

    tracer = TracInCP(
        model=subject.network(),
        train_dataset=TensorDataset(subject.images, subject.labels),
        checkpoints=list(states),
        checkpoints_load_func=load,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        batch_size=256,
        sample_wise_grads_per_batch=True,
    )
    scores: Tensor = tracer.influence((subject.tests, subject.classes))
    return scores.detach()


def trak(trained: Trained) -> Tensor:
    """Return traker's scores of one model, projected to 1,024 numbers."""
    from trak import TRAKer
    from trak.projectors import ProjectionType

    from benchmarks.peers.trak import Kept

    subject, weights = trained.subject, trained.model.state_dict()
    width = sum(weight.numel() for weight in weights.values())
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        traker = TRAKer(
            model=trained.model,
            task="image_classification",
            train_set_size=len(subject.images),
            save_dir=directory,
            device="cpu",
            projector=Kept(width, 1024, 0, ProjectionType.normal, torch.device("cpu"), block_size=1024),
            use_half_precision=False,
            logging_level=40,
        )
        traker.load_checkpoint(weights, model_id=0)
        for rows in torch.arange(len(subject.images)).split(128):
            traker.featurize(batch=[subject.images[rows], subject.labels[rows]], num_samples=len(rows))
        traker.finalize_features()
        traker.start_scoring_checkpoint("tests", weights, model_id=0, num_targets=len(subject.tests))
        traker.score(batch=[subject.tests, subject.classes], num_samples=len(subject.tests))
        return torch.as_tensor(traker.finalize_scores("tests")).mT.double()


def ekfac(trained: Trained) -> list[Tensor]:
    """Return kronfluence's EK-FAC with each damping: the best is reported."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments

    from benchmarks.peers.ekfac import Classification

    subject = trained.subject
    layers = [name for name, module in trained.model.named_modules() if isinstance(module, nn.Linear)]
    task = Classification(layers)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        copy = subject.network()
        copy.load_state_dict(trained.model.state_dict())
        model = prepare_model(copy, task)
        analyzer = Analyzer("peer", model, task, cpu=True, disable_tqdm=True, output_dir=directory)
        examples = TensorDataset(subject.images, subject.labels)
        analyzer.fit_all_factors(
            "f", examples, per_device_batch_size=256, factor_args=FactorArguments(strategy="ekfac")
        )
        scores = []
        for number, damping in enumerate(_DAMPINGS):
            analyzer.compute_pairwise_scores(
                str(number),
                "f",
                TensorDataset(subject.tests, subject.classes),
                examples,
                per_device_query_batch_size=len(subject.tests),
                per_device_train_batch_size=256,
                score_args=ScoreArguments(damping_factor=damping),
            )
            scores.append(analyzer.load_pairwise_scores(str(number))["all_modules"].double())
    return scores


METHODS: Mapping[str, Callable[[Trained], Tensor | list[Tensor]]] = {
    "attention, best layer": attention,
    "contribution": contribution,
    "TracIn (captum)": tracin,
    "TRAK (traker)": trak,
    "EK-FAC (kronfluence)": ekfac,
    "influence, fast": influence,
    "influence, exact": lambda trained: influence(trained, method="exact"),
    "influence, exact around 1 and 1/2": lambda trained: influence(trained, method="exact", around=(1, 0.5)),
}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    results: dict[str, Any] = {}
    for name, subject in subjects(data, quick).items():
        with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
            trained = train(subject, Path(directory) / "run", 16 if quick else 64)
            results[name] = {}
            for method, ask in METHODS.items():
                began = perf_counter()
                try:
                    scores = ask(trained)
                except ImportError as missing:
                    results[name][method] = {"missing": str(missing)}
                    continue
                seconds = perf_counter() - began
                several = [trained.scores(each) for each in (scores if isinstance(scores, list) else [scores])]
                lds = {share: max(each[share] for each in several) for share in several[0]}
                results[name][method] = {"lds": lds, "seconds": seconds, "trainings": seconds / trained.seconds}
    return results


def report(results: dict[str, Any]) -> str:
    lines = []
    for name, methods in results.items():
        lines += [f"{name}: without 1/2, 1/10, 1/100 of the examples; seconds; trainings"]
        for method, result in methods.items():
            if "missing" in result:
                lines.append(f"  {method:36s} not measured: {result['missing']}")
                continue
            numbers = "  ".join(f"{value:5.2f}" for value in result["lds"].values())
            lines.append(f"  {method:36s} {numbers}   {result['seconds']:7.1f} s  {result['trainings']:6.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command("faithfulness", __doc__, measure, report)
