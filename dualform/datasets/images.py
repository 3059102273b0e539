"""Images with labels: what every image data set is handed out as.

    data = image_catalogue.load("mnist")
    data.train.raw                                         # (60000, 784) uint8, as people see them
    standardised(data.test.raw, by=data.train.raw)         # (10000, 784) float32, as networks see them

Rows are images in a fixed order, so that a row number is an image's id everywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.errors import DataError


@dataclass(frozen=True)
class Split:
    """One part of a data set."""

    raw: Tensor  # (n, height * width) uint8
    labels: Tensor  # (n,) int64


@dataclass(frozen=True)
class ImageSet:
    """A data set of grey images, in a part to learn from and a part to be tested with."""

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int]  # height, width
    train: Split
    test: Split


def standardised(raw: Tensor, by: Tensor) -> Tensor:
    """Pixels in units of the deviation of `by`, around its mean: (n, pixels) float32.

    One mean and one deviation for all pixels: some at the border are never inked, their own would be 0.
    """
    mean, deviation = _mean_and_deviation(by)
    if not deviation > 0:
        raise DataError("cannot standardise by images whose pixels are all the same")
    pixels = raw.to(torch.float32, copy=True)  # a copy to be changed in place: a second one of MNIST is 188 MB
    return pixels.sub_(mean).div_(deviation)


def _mean_and_deviation(raw: Tensor) -> tuple[Tensor, Tensor]:
    ink = raw.float()
    return ink.mean(), ink.std()
