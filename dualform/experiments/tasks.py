"""Image sets as tasks: standardised pixels to train and test on, numbered through all tasks of a run.

    first, second = tasks([image_catalogue.load("mnist"), image_catalogue.load("fashion-mnist")])
    first.train.images           # (48000, 784), standardised
    second.train.first_id        # 48000: where the ids of its training images begin

As in the paper's experiments a fixed part, the first 80 per cent, of each training set is trained on, and
pixels are standardised by one mean and deviation of that part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.datasets.images import ImageSet, Split, standardised

_TRAINED_SHARE = 0.8


@dataclass(frozen=True)
class Examples:
    """Images as a network sees them, and as people do."""

    images: Tensor  # (n, pixels) float32, standardised
    raw: Tensor  # (n, pixels) uint8
    labels: Tensor  # (n,)
    first_id: int  # of row 0; ids go on through the training sets of all tasks

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Task:
    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int]
    train: Examples
    test: Examples


def tasks(sets: Sequence[ImageSet]) -> list[Task]:
    """One task each, with ids that do not collide."""
    found: list[Task] = []
    for images in sets:
        first_id = sum(len(task.train) for task in found)
        kept = int(_TRAINED_SHARE * len(images.train.labels))
        trained_on = Split(images.train.raw[:kept], images.train.labels[:kept])
        train, test = (
            Examples(standardised(split.raw, by=trained_on.raw), split.raw, split.labels, start)
            for split, start in ((trained_on, first_id), (images.test, 0))
        )
        found.append(Task(images.name, images.class_names, images.image_shape, train, test))
    return found


def training_images(of: Sequence[Task]) -> Tensor:
    """The raw training images of all tasks, (ids, pixels): row number and id are one."""
    return torch.cat([task.train.raw for task in of])
