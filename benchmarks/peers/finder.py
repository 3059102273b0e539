"""What every peer is made to look like: something that finds training examples behind predictions.

Each module of a peer has `prepare(task, directory, scope) -> Finder`. It may put into the directory what it wants
to keep; the scope says which layers are to be used, and is one of those its module knows.
"""

from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from benchmarks.peers.task import Task


class TopExamples(NamedTuple):
    """Training examples, best first; if every layer has its own answer, they are side by side."""

    rows: Tensor  # (questions, k or a multiple) of the training set
    scores: Tensor  # the same shape


class Finder(Protocol):
    @property
    def note(self) -> str:
        """Settings, for readers of the table."""

    @property
    def extrapolated(self) -> float:
        """Seconds to be added to the preparation, where it was made of a part of the training set."""

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        """Return the training examples with the highest scores for these classes of these images."""


class Prepare(Protocol):
    def __call__(self, task: Task, directory: Path, scope: str) -> Finder: ...


def best(scores: Tensor, k: int) -> TopExamples:
    """Return the top examples by scores, (questions, examples)."""
    top = scores.topk(k, dim=1)
    return TopExamples(top.indices, top.values)
