"""Small made-up tasks, so that tests of experiments need no data."""

import torch

from dualform.datasets.images import ImageSet, Split
from dualform.experiments.tasks import Task, tasks


def image_set(name: str, count: int = 50, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(256, (count, 64), generator=generator).to(torch.uint8)
    labels = torch.arange(count) % 10
    names = tuple(f"{name} {label}" for label in range(10))
    return ImageSet(name, names, (8, 8), Split(raw, labels), Split(raw[: count // 2], labels[: count // 2]))


def two_tasks() -> list[Task]:
    return tasks([image_set("first"), image_set("second", seed=1)])
