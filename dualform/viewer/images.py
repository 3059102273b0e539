"""Images as the page gets them: base64 of one byte a pixel, 0 for no ink, 255 for most.

pictures = Pictures.of(inputs, shape=(28, 28))
pictures.test(12), pictures.training(48001)
"""

import base64
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dualform.inputs import Inputs

Shape = tuple[int, int]
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class Pictures:
    """The images of a run's inputs and, if it has them, of its training examples."""

    shape: Shape
    tests: Tensor  # (n, pixels)
    trainings: Tensor | None  # (n, pixels)

    @classmethod
    def of(cls, inputs: Inputs, shape: Shape | None) -> "Pictures | None":
        """Find the images of inputs: the inputs themselves, if a shape is passed or they have channels.

        Returns:
            None where there are no images.
        """
        images = inputs.images if inputs.images is not None else inputs.inputs
        if inputs.images is None and shape is None and images.dim() != 4:
            return None
        tests, shape = _as_grey(images, shape)
        if tests is None or shape is None:
            return None
        trainings = None if inputs.training_images is None else _as_grey(inputs.training_images, shape)[0]
        return cls(shape, tests, trainings)

    @cached_property
    def ink(self) -> tuple[float, float]:
        """The numbers of a pixel without ink and of one with most."""
        low, high = self.tests.amin().item(), self.tests.amax().item()
        return float(low), float(high) if high > low else float(low) + 1.0

    def test(self, index: int) -> str:
        return self.encode(self.tests[index])

    def training(self, number: object) -> str | None:
        """Encode the training example with this id; None if there is no image of it."""
        if self.trainings is None or not isinstance(number, int) or not 0 <= number < len(self.trainings):
            return None
        return self.encode(self.trainings[number])

    def encode(self, pixels: Tensor) -> str:
        low, high = self.ink
        share = ((pixels.double() - low) / (high - low)).clamp(0, 1).nan_to_num()
        return base64.b64encode((share * 255).round().to(torch.uint8).numpy().tobytes()).decode()


def _as_grey(images: Tensor, shape: Shape | None) -> tuple[Tensor | None, Shape | None]:
    """Return images as rows of pixels, and their shape; None and None where they have no two sides."""
    if not (images.is_floating_point() or images.dtype in (torch.uint8, torch.int16, torch.int32, torch.int64)):
        return None, None
    if images.dim() == 4 and images.shape[1] in _CHANNELS:
        images = images.float().mean(dim=1)
    elif images.dim() == 4 and images.shape[3] in _CHANNELS:
        images = images.float().mean(dim=3)
    if shape is None and images.dim() == 3:
        shape = int(images.shape[1]), int(images.shape[2])
    rows = images.flatten(start_dim=1)  # (n, pixels)
    if shape is None or not len(rows) or rows.shape[1] != shape[0] * shape[1]:
        return None, None
    return rows, shape
