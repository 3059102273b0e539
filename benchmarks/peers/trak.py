"""traker: randomly projected gradients of every training example, as features of a linear model (TRAK).

Scopes: "last" projects the gradients of the last layer, "all" those of the whole network. The latter takes a product
of each gradient with a matrix of 1.3 million rows, tens of milliseconds an example on a CPU: it is measured on the
first `trak_examples` examples, and the seconds for the rest of the training set are added in proportion (only
those: memory, disk and answers are of these examples). One model is used. The projection is made once and kept;
by default it would be made anew for every batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from trak import TRAKer
from trak.projectors import BasicProjector, ProjectionType

from benchmarks.peers.finder import Finder, TopExamples, best
from benchmarks.peers.task import LAST, Rows, Task

# Gradients of all layers are made, 5 MB an example, whichever are used. A large batch is for the projection of them
# all; without it, one whose memory is used again and not given back is twice as fast.
_BATCH = {"all": 128, "last": 8}


class Kept(BasicProjector):  # type: ignore[misc]
    """Keep one block between features and scores: with a single block it would not be made again."""

    def free_memory(self) -> None:
        pass


@dataclass(frozen=True)
class _Trak:
    traker: Any
    weights: dict[str, Tensor]
    note: str
    extrapolated: float
    names: Iterator[int] = field(default_factory=count)

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        name = str(next(self.names))
        self.traker.start_scoring_checkpoint(name, self.weights, model_id=0, num_targets=len(images))
        self.traker.score(batch=[images, classes], num_samples=len(images))
        scores = torch.as_tensor(self.traker.finalize_scores(name))  # (examples, questions)
        return best(scores.mT, k)


def prepare(task: Task, directory: Path, scope: str) -> Finder:
    model, width = task.model(), task.settings.trak_projection
    weights = model.state_dict()
    names = [f"{LAST}.weight", f"{LAST}.bias"] if scope == "last" else list(weights)
    examples = task.settings.examples if scope == "last" else task.settings.trak_examples
    traker = TRAKer(
        model=model,
        task="image_classification",
        train_set_size=examples,
        save_dir=str(directory),
        device="cpu",
        projector=_projector(sum(weights[name].numel() for name in names), width),
        use_half_precision=False,
        grad_wrt=names,
    )
    traker.load_checkpoint(weights, model_id=0)
    each = _featurize(traker, task.rows(examples), _BATCH[scope])
    traker.finalize_features()
    left_out = task.settings.examples - examples
    note = f"projected to {width:,} numbers" + (f", measured on {examples:,} examples" if left_out else "")
    return _Trak(traker, weights, note, each * left_out)


def _featurize(traker: Any, rows: Rows, batch: int) -> float:
    """Return the seconds for each example, after the first batch."""
    began, ready = perf_counter(), 0
    for images, labels in rows.loader(batch):
        traker.featurize(batch=[images, labels], num_samples=len(labels))
        if not ready:
            began, ready = perf_counter(), len(labels)
    return (perf_counter() - began) / (len(rows) - ready)


def _projector(width: int, projected: int) -> Kept:
    return Kept(width, projected, 0, ProjectionType.normal, torch.device("cpu"), block_size=projected)
