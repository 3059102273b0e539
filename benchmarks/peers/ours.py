"""dualform: the run was recorded while the model was trained, so there is next to nothing to prepare.

Scopes: "all" asks every layer for its own ten, "last" the last layer only, both by attention weights summed over all
visits to a training image; "contribution" asks what each added to the logit of the predicted class.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import dualform
from benchmarks.peers.finder import Finder, TopExamples
from benchmarks.peers.task import LAST, LAYERS, RUN, Task
from dualform.attention.questions import Answers
from dualform.table import Table

_NOTES = {
    "all": "attention weights; each of the three layers gives its own top ten",
    "last": "attention weights of the last layer",
    "contribution": "contributions of the last layer to the logit of the predicted class",
}


@dataclass(frozen=True)
class _Memory:
    memory: dualform.Memory
    model: nn.Module
    scope: str
    extrapolated: float = 0.0

    @property
    def note(self) -> str:
        return _NOTES[self.scope]

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        spotlight = self.memory.attend(self.model, images)
        asked: list[Answers] = [spotlight[layer] for layer in (LAYERS if self.scope == "all" else (LAST,))]
        if self.scope == "contribution":
            asked = [spotlight[LAST].contribution(classes)]
        tables = [layer.top(k, per="id") for layer in asked]
        return TopExamples(_side_by_side(tables, "id", k).long(), _side_by_side(tables, "score", k))


def _side_by_side(tables: list[Table], column: str, k: int) -> Tensor:
    """(questions, layers times k)"""
    return torch.cat([torch.from_numpy(table[column]).view(-1, k) for table in tables], dim=1)


def prepare(task: Task, directory: Path, scope: str) -> Finder:
    return _Memory(dualform.load(task.directory / RUN), task.model(), scope)
