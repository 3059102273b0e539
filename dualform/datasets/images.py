"""Images with labels: what every image data set is loaded as.

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
    """The training or the test part of a data set.

    Attributes:
        raw: pixels, (n, height * width) uint8.
        labels: number of the class of each image, (n,) int64.
    """

    raw: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ImageSet:
    """A data set of grey images, in a training and a test part.

    Attributes:
        name: of the data set.
        class_names: name of each label.
        image_shape: height and width.
        train: part to train on.
        test: part to test on.
    """

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int]
    train: Split
    test: Split


def standardised(raw: Tensor, by: Tensor) -> Tensor:
    """Return pixels standardised by the mean and the standard deviation of other images.

        standardised(data.test.raw, by=data.train.raw)

    There is one mean and one deviation for all pixels: at the border some pixels never vary, and have a deviation of 0.

    Args:
        raw: images, (n, pixels).
        by: images whose mean and deviation are taken, usually the training set.

    Returns:
        Tensor of shape (n, pixels), float32.
    """
    reference = by.float()
    mean, deviation = reference.mean(), reference.std()
    del reference  # as large as the result
    if not deviation > 0:
        raise DataError("cannot standardise by images whose pixels are all the same")
    pixels = raw.to(torch.float32, copy=True)  # changed in place, for another copy of MNIST takes 188 MB
    return pixels.sub_(mean).div_(deviation)
