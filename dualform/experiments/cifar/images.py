"""Image sets as tasks of convolutional networks: maps with channels, all of them trained on, shifted and mirrored.

task = as_task(image_catalogue.load("cifar-10"))
task.train.images                       # (50000, 3, 32, 32), each channel standardised
first, second = halves(task)            # of the classes: 0 to 4, and 5 to 9
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.datasets.images import ImageSet, Split, standardised
from dualform.experiments.tasks import Task, TaskExamples


def as_task(images: ImageSet) -> Task:
    """Return a task of all images, standardised by those to train on."""
    sides = images.image_shape
    shape = sides if len(sides) == 3 else (1, *sides)  # (channels, height, width)

    def examples(split: Split) -> TaskExamples:
        pixels = standardised(split.raw, by=images.train.raw, channels=shape[0])
        return TaskExamples(pixels.reshape(-1, *shape), split.raw, split.labels, first_id=0)

    return Task(images.name, images.class_names, sides, examples(images.train), examples(images.test))


def halves(task: Task) -> tuple[Task, Task]:
    """Return two tasks, of the lower and the upper half of the classes; labels stay what they are."""
    middle, names = len(task.class_names) // 2, task.class_names
    low, high = (f"{part[0]} to {part[-1]}" for part in (names[:middle], names[middle:]))
    first = _subset(task, low, task.train.labels < middle, task.test.labels < middle, first_id=0)
    second = _subset(task, high, task.train.labels >= middle, task.test.labels >= middle, first_id=len(first.train))
    return first, second


def _subset(task: Task, name: str, trained: Tensor, tested: Tensor, first_id: int) -> Task:
    parts = (
        TaskExamples(examples.images[rows], examples.raw[rows], examples.labels[rows], start)
        for examples, rows, start in ((task.train, trained, first_id), (task.test, tested, 0))
    )
    return Task(name, task.class_names, task.image_shape, *parts)


@dataclass(frozen=True)
class Moves:
    """How images are moved and mirrored, each by itself.

    Attributes:
        down: in pixels, from 0 to twice the largest shift, (n, 1).
        right: likewise.
        mirrored: whether left and right are exchanged, (n, 1); None: of no image.
    """

    down: Tensor
    right: Tensor
    mirrored: Tensor | None


def draw_moves(count: int, shift: int, mirror: bool, generator: torch.Generator) -> Moves:
    """Draw how images are moved by up to `shift` pixels in each direction and, half of them, mirrored.

    Args:
        count: of images.
        shift: in pixels.
        mirror: whether left and right may be exchanged.
        generator: of random numbers.
    """
    down, right = torch.randint(2 * shift + 1, (2, count, 1), generator=generator)
    return Moves(down, right, torch.rand(count, 1, generator=generator) < 0.5 if mirror else None)


def moved(images: Tensor, moves: Moves, shift: int) -> Tensor:
    """Return images as they are moved.

    Args:
        images: (n, channels, height, width); what moves in from beyond the border is 0, the mean.
        moves: of each.
        shift: the largest, in pixels.
    """
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (shift, shift, shift, shift))
    rows, columns = moves.down + torch.arange(height), moves.right + torch.arange(width)  # (n, height), (n, width)
    if moves.mirrored is not None:
        columns = torch.where(moves.mirrored, columns.flip(1), columns)
    number = torch.arange(count)[:, None, None]
    shifted = padded[number, :, rows[:, :, None], columns[:, None, :]]  # (n, height, width, channels)
    return shifted.permute(0, 3, 1, 2).contiguous()
