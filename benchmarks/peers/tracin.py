"""captum's TracIn: products of the last layer's gradients, summed over checkpoints.

Scopes: "last" is `TracInCPFast`, which keeps nothing and goes through the training set for every question, in batches
as large as its documentation wants them. "projected" is `TracInCPFastRandProj`, which its documentation
recommends where questions come one after the other: it projects the gradients of the whole training set once and
keeps them in memory. Its nearest neighbours are found by one product instead of Annoy, which is exact and
needs no further package.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from captum.influence import TracInCPFast, TracInCPFastRandProj
from captum.influence._utils.nearest_neighbors import NearestNeighbors
from torch import Tensor, nn

from benchmarks.peers.finder import Finder, TopExamples, best
from benchmarks.peers.task import LAST, Task

_BATCH = 10_000
_RATE = 3e-3  # of `benchmarks.recording`'s training: it weighs checkpoints, and is the same for all


class Product(NearestNeighbors):  # type: ignore[misc]
    """Find the largest products with all stored vectors."""

    def setup(self, data: Tensor) -> None:
        self._stored = data

    def get_nearest_neighbors(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return best(query @ self._stored.mT, k)


@dataclass(frozen=True)
class _TracIn:
    influence: Any
    note: str
    extrapolated: float = 0.0

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        influences = self.influence.influence((images, classes), k=k)
        return TopExamples(influences.indices, influences.influence_scores)


def _load(model: nn.Module, path: str) -> float:
    """Load a checkpoint into the model. Returns the learning rate."""
    model.load_state_dict(torch.load(path))
    return _RATE


def prepare(task: Task, directory: Path, scope: str) -> Finder:
    model = task.model()
    checkpoints = [str(path) for path in task.checkpoints]
    settings: dict[str, Any] = {
        "model": model,
        "final_fc_layer": model.get_submodule(LAST),
        "train_dataset": task.rows().loader(_BATCH),
        "checkpoints": checkpoints,
        "checkpoints_load_func": _load,
        "loss_fn": nn.CrossEntropyLoss(reduction="sum"),
    }
    if scope == "last":
        return _TracIn(TracInCPFast(**settings), f"{len(checkpoints)} checkpoints, batches of {_BATCH:,}")
    width = task.settings.captum_projection
    projected = TracInCPFastRandProj(**settings, nearest_neighbors=Product(), projection_dim=width)
    return _TracIn(projected, f"{len(checkpoints)} checkpoints, projected to {width:,} numbers each at most, in memory")
