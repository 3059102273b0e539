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
        raw: pixels, (n, height * width) uint8; of colours, (n, 3 * height * width), one colour after the other.
        labels: number of the class of each image, (n,) int64.
    """

    raw: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ImageSet:
    """A data set of images, in a training and a test part.

    Attributes:
        name: of the data set.
        class_names: name of each label.
        image_shape: height and width; of images in colour 3, height and width.
        train: part to train on.
        test: part to test on.
        note: what its users should know, if anything.
    """

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    train: Split
    test: Split
    note: str | None = None


def standardised(raw: Tensor, by: Tensor, channels: int = 1) -> Tensor:
    """Return pixels standardised by the mean and the standard deviation of other images.

        standardised(data.test.raw, by=data.train.raw)

    There is one mean and one deviation for all pixels of a channel: at the border some pixels never vary, and have a
    deviation of 0.

    Args:
        raw: images, (n, pixels).
        by: images whose mean and deviation are taken, usually the training set.
        channels: how many colours there are, one after the other in a row.

    Returns:
        Tensor of shape (n, pixels), float32.
    """
    reference = by.float().reshape(len(by), channels, -1)
    mean, deviation = reference.mean(dim=(0, 2)), reference.std(dim=(0, 2))  # (channels,)
    del reference  # as large as the result
    if not bool((deviation > 0).all()):
        raise DataError("cannot standardise by images whose pixels are all the same")
    pixels = raw.to(torch.float32, copy=True)  # changed in place, for another copy of MNIST takes 188 MB
    pixels.view(len(raw), channels, -1).sub_(mean[:, None]).div_(deviation[:, None])
    return pixels
