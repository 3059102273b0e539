"""Make tasks of image sets: standardised pixels to train and test on, with ids through all tasks of a run.

    first, second = tasks([image_catalogue.load("mnist"), image_catalogue.load("fashion-mnist")])
    first.train.images           # (48000, 784), standardised
    second.train.first_id        # 48000: where the ids of its training images begin

As in the paper's experiments, the first 80 per cent of each training set are trained on, and pixels are
standardised by the mean and deviation of that part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.datasets.images import ImageSet, Split, standardised

_TRAINED_SHARE = 0.8


@dataclass(frozen=True)
class TaskExamples:
    """Images as a network sees them, and as people do."""

    images: Tensor  # (n, pixels) float32, standardised
    raw: Tensor  # (n, pixels) uint8
    labels: Tensor  # (n,)
    first_id: int  # id of row 0; ids continue through the training sets of all tasks

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Task:
    """An image set to train and test on."""

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    train: TaskExamples
    test: TaskExamples


def tasks(sets: Sequence[ImageSet]) -> list[Task]:
    """Return a task for each image set, with unique ids."""
    made: list[Task] = []
    for images in sets:
        first_id = sum(len(task.train) for task in made)
        kept = int(_TRAINED_SHARE * len(images.train.labels))
        trained_on = Split(images.train.raw[:kept], images.train.labels[:kept])
        train, test = (
            TaskExamples(standardised(split.raw, by=trained_on.raw), split.raw, split.labels, start)
            for split, start in ((trained_on, first_id), (images.test, 0))
        )
        made.append(Task(images.name, images.class_names, images.image_shape, train, test))
    return made


def training_images(tasks: Sequence[Task]) -> Tensor:
    """Return the raw training images of all tasks, (ids, pixels): the row number is the id."""
    return torch.cat([task.train.raw for task in tasks])
