"""kronfluence: influence functions with the curvature as eigenvalue-corrected Kronecker factors (EKFAC).

Scopes: "all" uses every layer, as its documentation recommends, "last" the last one. The factors are its preparation;
every question goes through the training set. With all layers there are two of its documented savings: the
eigenvalues are corrected by the first `kronfluence_lambda_examples` examples only, for each takes a rotation of a
whole gradient (two products of 800x800 matrices a layer), and the gradients of the questions are kept at rank
`kronfluence_rank`. The last layer alone needs neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from kronfluence.analyzer import Analyzer, prepare_model
from kronfluence.arguments import FactorArguments, ScoreArguments
from kronfluence.task import Task as KronfluenceTask
from kronfluence.utils.dataset import DataLoaderKwargs
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.finder import Finder, TopExamples, best
from benchmarks.peers.task import LAST, LAYERS, Pair, Rows, Task, as_it_is

_FACTORS = "factors"
_BATCH = 2000
_GRADIENTS = 64  # whole gradients at a time: each takes 5 MB, and three copies of it


class Classification(KronfluenceTask):  # type: ignore[misc]
    """The loss trained with, and the loss of a question for its predicted class."""

    def __init__(self, layers: list[str]) -> None:
        self._layers = layers

    def compute_train_loss(self, batch: Pair, model: nn.Module, sample: bool = False) -> Tensor:
        images, classes = batch
        logits = model(images)
        if sample:  # the Fisher matrix is that of the model's own answers
            classes = logits.detach().softmax(dim=1).multinomial(1).flatten()
        return F.cross_entropy(logits, classes, reduction="sum")

    def compute_measurement(self, batch: Pair, model: nn.Module) -> Tensor:
        return self.compute_train_loss(batch, model)

    def get_influence_tracked_modules(self) -> list[str]:
        return self._layers


@dataclass(frozen=True)
class _Kronfluence:
    analyzer: Any
    train: Rows
    rank: int | None
    note: str
    extrapolated: float = 0.0
    names: Iterator[int] = field(default_factory=count)

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        name = str(next(self.names))
        self.analyzer.compute_pairwise_scores(
            scores_name=name,
            factors_name=_FACTORS,
            query_dataset=Rows(images, classes),
            train_dataset=self.train,
            per_device_query_batch_size=len(images),
            per_device_train_batch_size=_BATCH,
            score_args=ScoreArguments(query_gradient_low_rank=self.rank),
        )
        return best(self.analyzer.load_pairwise_scores(name)["all_modules"], k)


def prepare(task: Task, directory: Path, scope: str) -> Finder:
    classification = Classification(list(LAYERS) if scope == "all" else [LAST])
    model = prepare_model(task.model(), classification)
    analyzer = Analyzer("peer", model, classification, cpu=True, disable_tqdm=True, output_dir=str(directory))
    analyzer.set_dataloader_kwargs(DataLoaderKwargs(collate_fn=as_it_is))
    examples = task.settings.kronfluence_lambda_examples if scope == "all" else task.settings.examples
    _fit(analyzer, task.rows(), examples, _GRADIENTS if scope == "all" else _BATCH)
    if scope == "last":
        return _Kronfluence(analyzer, task.rows(), None, "EKFAC of the last layer")
    rank = task.settings.kronfluence_rank
    return _Kronfluence(analyzer, task.rows(), rank, f"EKFAC, eigenvalues from {examples:,} examples, rank {rank}")


def _fit(analyzer: Any, train: Rows, examples: int, gradients: int) -> None:
    chosen = FactorArguments(strategy="ekfac", lambda_max_examples=examples)
    settings: dict[str, Any] = {"factors_name": _FACTORS, "factor_args": chosen}
    analyzer.fit_covariance_matrices(dataset=train, per_device_batch_size=_BATCH, **settings)
    analyzer.perform_eigendecomposition(**settings)
    analyzer.fit_lambda_matrices(dataset=train, per_device_batch_size=gradients, **settings)
