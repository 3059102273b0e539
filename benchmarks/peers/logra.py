"""dattri: influence functions on gradients projected layer by layer from both sides (LoGra).

Of its attributors, LoGra is the one that projects before a gradient is ever made, and keeps the training set's between
questions. Settings are those of dattri's own example of an MLP on MNIST: the empirical Fisher matrix, damped by
5e-3, 1,024 numbers a layer, large batches, kept in memory. What it would compile is run as it is: on a CPU compiling
takes several times as long as it saves. Scopes: "all" layers, or the "last".
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dattri.algorithm import LoGraAttributor
from dattri.task import AttributionTask
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.peers.finder import Finder, TopExamples, best
from benchmarks.peers.task import LAST, LAYERS, Pair, Rows, Task

_BATCH = 5000
_DAMPING = 5e-3


@dataclass(frozen=True)
class _LoGra:
    attributor: Any
    train: DataLoader[Pair]
    note: str
    extrapolated: float = 0.0

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        with torch.compiler.set_stance("force_eager"):
            scores = self.attributor.attribute(self.train, _loader(Rows(images, classes)))
        return best(scores.mT, k)


def cross_entropy(model: nn.Module, batch: Pair, device: str) -> Tensor:
    """Return the loss that was trained with, and that a question is about."""
    images, classes = batch
    return F.cross_entropy(model(images), classes)


def _loader(rows: Rows) -> DataLoader[Pair]:
    """dattri learns the layers' widths from the first example of a batch, and needs it to look like a batch of one."""
    return Rows(rows.images[:, None], rows.classes).loader(_BATCH)


def prepare(task: Task, directory: Path, scope: str) -> Finder:
    model = nn.Sequential(OrderedDict(flat=nn.Flatten(), network=task.model()))
    width = task.settings.dattri_projection
    attributor = LoGraAttributor(
        task=AttributionTask(model=model, loss_func=cross_entropy, checkpoints=model.state_dict()),
        layer_names=[f"network.{layer}" for layer in (LAYERS if scope == "all" else [LAST])],
        hessian="eFIM",
        damping=_DAMPING,
        proj_dim=width,
        offload="cpu",
        cache_dir=str(directory),
    )
    train = _loader(task.rows())
    with torch.compiler.set_stance("force_eager"):
        attributor.cache(train)
    return _LoGra(attributor, train, f"LoGra, {width:,} numbers a layer, kept in memory")
