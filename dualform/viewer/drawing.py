"""A drawing as the model would have been shown it: as large, as thick and in the same place as training images are.

    converter = DrawingConverter.of(pictures, inputs)   # raises Refused where a drawing cannot become an input
    image = converter.image("AQID...")                  # (pixels,), as people see it
    converter.input(image)                              # (1, ...), as the model takes it

A drawing is strokes on a pad: two bytes a point, x and y from 0 to 254; 255 255 lifts the pen.
"""

import base64
import binascii
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import Refused
from dualform.inputs import Inputs
from dualform.viewer.images import Pictures, Shape

Array = NDArray[np.float64]

_LIFTED = 255
_MAX_POINTS = 2000
_MEASURED_IMAGES = 1000
_INKED = 0.25  # share of the most ink from which a pixel belongs to the figure
_PEN_RADIUS = 0.07  # of the figure's longer side
_SAMPLES = 3  # across a pixel, at which ink is measured
_STRAIGHT = 1e-3  # of the inputs' spread: how far they may be from a straight line over the images


@dataclass(frozen=True)
class DrawingConverter:
    """What drawings are made to look like, and how images become inputs."""

    shape: Shape
    side: float  # the longer side of a figure, in pixels
    centre: tuple[float, float]  # of its mass: x, y in pixels
    ink: tuple[float, float]  # numbers of a pixel without and with ink
    scale: float  # input = scale * image + offset
    offset: float
    example: Tensor  # an input, for its shape and precision: (1, ...)

    @classmethod
    def of(cls, pictures: Pictures, inputs: Inputs) -> "DrawingConverter":
        """Measure the training images, or else the test images."""
        images = pictures.trainings if pictures.trainings is not None else pictures.tests
        low, high = pictures.ink
        sample = images[torch.linspace(0, len(images) - 1, min(_MEASURED_IMAGES, len(images))).long()]
        shares = ((sample.double() - low) / (high - low)).clamp(0, 1).reshape(-1, *pictures.shape).numpy()
        sides = []
        for share in shares:
            rows, columns = (np.flatnonzero((share > _INKED).any(axis=axis)) for axis in (1, 0))
            if len(rows):
                sides.append(max(np.ptp(rows), np.ptp(columns)) + 1)
        side = float(np.median(sides)) if sides else float(max(pictures.shape))
        x, y = np.median([_centre_of_mass(share) for share in shares], axis=0)
        scale, offset = _fit_line(pictures.tests, inputs.inputs)
        return cls(pictures.shape, side, (float(x), float(y)), (low, high), scale, offset, inputs.row(0))

    def image(self, drawn: str) -> Tensor:
        """Draw strokes in ink: (pixels,)."""
        strokes = decode_strokes(drawn)
        points = np.concatenate(strokes)
        extent = max(float((points.max(axis=0) - points.min(axis=0)).max()), 1.0)
        radius = max(_PEN_RADIUS * self.side, 0.5)
        factor = max(self.side - 2 * radius, 1.0) / extent
        placed = [(stroke - points.mean(axis=0)) * factor for stroke in strokes]
        middle = self.shape[1] / 2, self.shape[0] / 2
        first = _covered(placed, middle, radius, self.shape)
        # its mass is not in the middle of its points: put down once more, where the training images have theirs
        at = np.array(middle) + np.array(self.centre) - np.array(_centre_of_mass(first))
        share = _covered(placed, (float(at[0]), float(at[1])), radius, self.shape)
        low, high = self.ink
        return torch.from_numpy(low + share * (high - low)).flatten()

    def input(self, image: Tensor) -> Tensor:
        """Scale an image as the inputs are."""
        return (self.scale * image + self.offset).to(self.example.dtype).reshape(self.example.shape)


def decode_strokes(drawn: str) -> list[Array]:
    """Return the strokes of a drawing, (points, 2) each, at least one."""
    try:
        raw = base64.b64decode(drawn + "=" * (-len(drawn) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"a drawing is base64url of its points: {error}") from None
    if len(raw) % 2 or len(raw) > 2 * _MAX_POINTS:
        raise Refused(f"a drawing has two bytes a point and at most {_MAX_POINTS:,} points, not {len(raw)} bytes")
    points = np.frombuffer(raw, np.uint8).reshape(-1, 2)
    breaks = np.flatnonzero((points == _LIFTED).all(axis=1))
    strokes = [part[(part != _LIFTED).all(axis=1)].astype(np.float64) for part in np.split(points, breaks)]
    strokes = [stroke for stroke in strokes if len(stroke)]
    if not strokes:
        raise Refused("the drawing is empty: a drawing has at least one point")
    return strokes


def _covered(strokes: list[Array], at: tuple[float, float], radius: float, shape: Shape) -> Array:
    """Return how much of each pixel a round pen along the strokes covers, 0 to 1: (height, width)."""
    places = (np.arange(_SAMPLES * max(shape)) + 0.5) / _SAMPLES  # pixels
    x, y = np.meshgrid(places[: _SAMPLES * shape[1]] - at[0], places[: _SAMPLES * shape[0]] - at[1])
    nearest = np.full(x.shape, np.inf)  # squared distance from a stroke
    for stroke in strokes:
        for start, end in zip(stroke, stroke[1:] if len(stroke) > 1 else stroke, strict=False):
            along = end - start
            length = float(along @ along)
            share = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / length, 0, 1) if length else 0.0
            squared = (x - start[0] - share * along[0]) ** 2 + (y - start[1] - share * along[1]) ** 2
            np.minimum(nearest, squared, out=nearest)
    inside = np.clip((radius - np.sqrt(nearest)) * _SAMPLES + 0.5, 0, 1)
    covered: Array = inside.reshape(shape[0], _SAMPLES, shape[1], _SAMPLES).mean(axis=(1, 3))
    return covered


def _centre_of_mass(share: Array) -> tuple[float, float]:
    """Return x and y in pixels."""
    total = max(float(share.sum()), 1e-12)
    y, x = (np.arange(side) + 0.5 for side in share.shape)
    return float((share.sum(axis=0) * x).sum() / total), float((share.sum(axis=1) * y).sum() / total)


def _fit_line(images: Tensor, inputs: Tensor) -> tuple[float, float]:
    """Return the scale and offset by which images became inputs; raises if they became them in another way."""
    rows = inputs[:_MEASURED_IMAGES].double().flatten(start_dim=1)
    pixels = images[:_MEASURED_IMAGES].double()
    if rows.shape != pixels.shape:
        raise Refused("drawing is for models that take images pixel by pixel: these inputs have another size")
    x, y = pixels.flatten(), rows.flatten()
    spread = x.var(correction=0).item()
    if not spread > 0:
        raise Refused("drawing needs images that are not all the same")
    scale = (((x - x.mean()) * (y - y.mean())).mean() / spread).item()
    offset = (y.mean() - scale * x.mean()).item()
    if not (y - scale * x - offset).abs().max() <= _STRAIGHT * max(y.std(correction=0).item(), 1e-12):
        raise Refused("drawing is for inputs that are images with every pixel scaled alike: these are something else")
    return scale, offset
