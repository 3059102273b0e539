"""What predicts a training without some examples: our methods and other tools', each prepared once and then asked.

Every method returns a Prediction. Scores are (outputs, examples), positive for what speaks for the class: several of
them where a setting has to be chosen, of which the best is reported, number by number. Seconds and bytes are those of
one setting.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dualform.influence.ask import Wanted, asked_of_layers
from dualform.table import Table

if TYPE_CHECKING:
    from benchmarks.faithfulness import Trained

CHECKPOINTS = 10
PROJECTIONS = (64, 128, 256, 512, 1024)
DAMPINGS = (None, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # None: kronfluence's own
_LOGRA = [(numbers, damping) for numbers in (256, 1024) for damping in (5e-3, 5e-2, 5e-1)]


@dataclass(frozen=True)
class Prediction:
    """What a method says, and what that took."""

    scores: Sequence[Tensor]
    prepare: float  # seconds, before it is known what is asked about
    ask: float  # seconds, for all outputs
    kept: int  # bytes that are kept between questions


class _Clock:
    """Adds up the seconds of both stages."""

    def __init__(self) -> None:
        self._prepare = self._ask = 0.0

    @contextmanager
    def preparing(self) -> Iterator[None]:
        began = perf_counter()
        yield
        self._prepare += perf_counter() - began

    @contextmanager
    def asking(self) -> Iterator[None]:
        began = perf_counter()
        yield
        self._ask += perf_counter() - began

    def prediction(self, scores: Sequence[Tensor], kept: int, prepared: float = 0.0) -> Prediction:
        """Return scores with what one of them took."""
        times = len(scores)
        return Prediction(
            [each.detach().double() for each in scores], prepared + self._prepare / times, self._ask / times, kept
        )


def attention(trained: "Trained") -> Prediction:
    """Attention in each layer."""

    def ask() -> list[Tensor]:
        spotlight = trained.memory.attend(trained.model, trained.subject.tests)
        return [_by_id(trained, spotlight[name].total(by="id")) for name in spotlight]

    return _of_recording(trained, ask)


def contribution(trained: "Trained") -> Prediction:
    """Contributions to the margins, over all layers."""
    memory, subject = trained.memory, trained.subject

    def ask() -> list[Tensor]:
        wanted = Wanted(subject.classes, "margin", None)
        asked, _ = asked_of_layers(memory._sources.view, trained.model, subject.tests, wanted)
        spotlight = memory.attend(trained.model, subject.tests)
        tables = (spotlight[name].contribution(own.directions).total(by="id") for name, own in asked.items())
        return [torch.stack([_by_id(trained, table) for table in tables]).sum(dim=0)]

    return _of_recording(trained, ask)


def influence(trained: "Trained", **options: Any) -> Prediction:
    """Our influence."""
    subject = trained.subject

    def ask() -> list[Tensor]:
        own = trained.memory.influence(trained.model, subject.tests, subject.classes, **options)
        return [_by_id(trained, own.examples)]

    return _of_recording(trained, ask)


def _of_recording(trained: "Trained", ask: Callable[[], list[Tensor]]) -> Prediction:
    """Ask a recording, whose preparation is what recording has added to the training."""
    began = perf_counter()
    scores = ask()
    seconds, nbytes = perf_counter() - began, trained.memory.summary()["bytes"]
    return Prediction(scores, trained.seconds - trained.plain_seconds, seconds, nbytes)


def _by_id(trained: "Trained", table: Table) -> Tensor:
    scores = torch.zeros(len(trained.subject.tests), len(trained.subject.images), dtype=torch.float64)
    rows, columns = torch.from_numpy(table["query"]), torch.from_numpy(table["id"].astype("int64"))
    return scores.index_put_((rows, columns), torch.from_numpy(table["total"]), accumulate=True)


def tracin(trained: "Trained") -> Prediction:
    """TracIn of captum with ten checkpoints, over all layers."""
    from captum.influence import TracInCP

    subject, clock = trained.subject, _Clock()
    steps = [round(subject.steps * (i + 1) / CHECKPOINTS) for i in range(CHECKPOINTS)]
    states = {str(step): trained.memory.until(step).model(subject.network()).state_dict() for step in steps}

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
    with clock.asking():
        scores: Tensor = tracer.influence((subject.tests, subject.classes))
    return clock.prediction([scores], CHECKPOINTS * _nbytes(trained.model))


def trak(trained: "Trained") -> Prediction:
    """TRAK of one model, with each number of projections."""
    from trak import TRAKer
    from trak.projectors import ProjectionType

    from benchmarks.peers.trak import Kept

    subject, weights, clock, scores, kept = trained.subject, trained.model.state_dict(), _Clock(), list[Tensor](), 0
    width = sum(weight.numel() for weight in weights.values())
    for numbers in PROJECTIONS:
        with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
            with clock.preparing():
                traker = TRAKer(
                    model=trained.model,
                    task="image_classification",
                    train_set_size=len(subject.images),
                    save_dir=directory,
                    device="cpu",
                    projector=Kept(width, numbers, 0, ProjectionType.normal, torch.device("cpu"), block_size=numbers),
                    use_half_precision=False,
                    logging_level=40,
                )
                traker.load_checkpoint(weights, model_id=0)
                for rows in torch.arange(len(subject.images)).split(128):
                    traker.featurize(batch=[subject.images[rows], subject.labels[rows]], num_samples=len(rows))
                traker.finalize_features()
            with clock.asking():
                traker.start_scoring_checkpoint("tests", weights, model_id=0, num_targets=len(subject.tests))
                traker.score(batch=[subject.tests, subject.classes], num_samples=len(subject.tests))
                scores.append(torch.as_tensor(traker.finalize_scores("tests")).mT)
            kept = max(kept, _size(directory))
    return clock.prediction(scores, kept)


def ekfac(trained: "Trained") -> Prediction:
    """EK-FAC of kronfluence, with each damping."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments

    from benchmarks.peers.ekfac import Classification

    subject, clock, scores = trained.subject, _Clock(), list[Tensor]()
    task = Classification([name for name, module in trained.model.named_modules() if isinstance(module, nn.Linear)])
    copy, began = subject.network(), perf_counter()
    copy.load_state_dict(trained.model.state_dict())
    examples = TensorDataset(subject.images, subject.labels)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        model = prepare_model(copy, task)
        analyzer = Analyzer("peer", model, task, cpu=True, disable_tqdm=True, output_dir=directory)
        factors = FactorArguments(strategy="ekfac")
        analyzer.fit_all_factors("f", examples, per_device_batch_size=256, factor_args=factors)
        fitted, kept = perf_counter() - began, _size(directory)
        for number, damping in enumerate(DAMPINGS):
            with clock.asking():
                analyzer.compute_pairwise_scores(
                    str(number),
                    "f",
                    TensorDataset(subject.tests, subject.classes),
                    examples,
                    per_device_query_batch_size=len(subject.tests),
                    per_device_train_batch_size=256,
                    score_args=ScoreArguments(damping_factor=damping),
                )
                scores.append(analyzer.load_pairwise_scores(str(number))["all_modules"])
    return clock.prediction(scores, kept, fitted)


def logra(trained: "Trained") -> Prediction:
    """LoGra of dattri, with two numbers of projections and three dampings: influence functions projected by layer."""
    from dattri.algorithm import LoGraAttributor
    from dattri.task import AttributionTask

    from benchmarks.peers.logra import cross_entropy

    subject, clock, scores, kept = trained.subject, _Clock(), list[Tensor](), 0
    model = nn.Sequential(nn.Flatten(), *trained.model)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    # it learns the layers' widths from the first example of a batch, and needs that to look like a batch of one
    train = DataLoader(TensorDataset(subject.images[:, None], subject.labels), batch_size=256)
    tests = DataLoader(TensorDataset(subject.tests[:, None], subject.classes), batch_size=256)
    for numbers, damping in _LOGRA:
        with TemporaryDirectory(prefix="dualform-benchmark-") as directory, torch.compiler.set_stance("force_eager"):
            with clock.preparing():
                attributor = LoGraAttributor(
                    task=AttributionTask(model=model, loss_func=cross_entropy, checkpoints=model.state_dict()),
                    layer_names=layers,
                    hessian="eFIM",
                    damping=damping,
                    proj_dim=numbers,
                    offload="cpu",
                    cache_dir=directory,
                )
                attributor.cache(train)
            with clock.asking():
                scores.append(attributor.attribute(train, tests).mT)
        kept = max(kept, 4 * numbers * len(layers) * len(subject.images))  # in memory
    return clock.prediction(scores, kept)


def _nbytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _size(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())


METHODS: Mapping[str, Callable[["Trained"], Prediction]] = {
    "attention, best layer": attention,
    "contribution": contribution,
    "TracIn (captum)": tracin,
    "TRAK (traker)": trak,
    "LoGra (dattri)": logra,
    "EK-FAC (kronfluence)": ekfac,
    "influence, fast": influence,
    "influence, exact": lambda trained: influence(trained, method="exact"),
    "influence, exact around 1 and 1/2": lambda trained: influence(trained, method="exact", around=(1, 0.5)),
}
