"""Unfold maps of pixels: which pixels a convolution multiplies at each of its positions.

    geometry = Geometry(kernel=(3, 3), stride=(1, 1), dilation=(1, 1), before=(1, 1), after=(1, 1))
    geometry.positions((32, 32))            # (32, 32)
    geometry.taps((32, 32))                 # (1024, 9): the number of each pixel in its map, or NO_PIXEL

A pixel is what is at one place of a map, all channels together. Maps are stored, of which patches are several times the
size; whoever reads them unfolds them by these numbers.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_PIXEL = -1  # beyond the border, where there are zeros
MODES = ("zeros", "reflect", "replicate", "circular")  # what is beyond the border of a map
MAX_DIMENSIONS = 3
_MAX_SIZE = 1 << 31  # pixels

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves over a map, along each of its dimensions."""

    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    before: Sizes  # how far it begins before the border
    after: Sizes
    mode: str = "zeros"

    @property
    def dimensions(self) -> int:
        return len(self.kernel)

    def positions(self, extents: Sizes) -> Sizes:
        """Return how many positions there are along each dimension of a map with these extents."""
        reach = (d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True))
        padded = (n + b + a for n, b, a in zip(extents, self.before, self.after, strict=True))
        return tuple((n - r - 1) // s + 1 for n, r, s in zip(padded, reach, self.stride, strict=True))

    def taps(self, extents: Sizes) -> NDArray[np.int64]:
        """Return which pixels of a map each position sees: (positions, taps)."""
        return _taps(self, tuple(extents))

    def check(self) -> None:
        """Raise a ValueError unless all of it makes sense."""
        sizes = (self.kernel, self.stride, self.dilation, self.before, self.after)
        whole = all(type(number) is int for some in sizes for number in some)
        alike = {len(some) for some in sizes} <= {self.dimensions} and 0 < self.dimensions <= MAX_DIMENSIONS
        if not (whole and alike and self.mode in MODES):
            raise ValueError("its geometry does not say how a kernel moves")
        positive, padding = (*self.kernel, *self.stride, *self.dilation), (*self.before, *self.after)
        if min(positive) < 1 or min(padding) < 0 or max(*positive, *padding) >= _MAX_SIZE:
            raise ValueError("its geometry has sizes that cannot be")


@lru_cache(maxsize=64)
def _taps(geometry: Geometry, extents: Sizes) -> NDArray[np.int64]:
    number = np.zeros((1, 1), dtype=np.int64)
    inside = np.ones((1, 1), dtype=bool)
    for axis, (extent, positions) in enumerate(zip(extents, geometry.positions(extents), strict=True)):
        starts = np.arange(positions)[:, None] * geometry.stride[axis] - geometry.before[axis]
        place = starts + np.arange(geometry.kernel[axis]) * geometry.dilation[axis]  # (positions, kernel)
        place, within = _within(place, extent, geometry.mode)
        number = _joined(number * extent, place, np.add)
        inside = _joined(inside, within, np.logical_and)
    taps: NDArray[np.int64] = np.where(inside, number, NO_PIXEL)
    taps.flags.writeable = False
    return taps


def _joined(outer: NDArray[Any], inner: NDArray[Any], operation: Any) -> NDArray[Any]:
    """Combine (positions, taps) of the dimensions so far with those of the next one."""
    combined: NDArray[Any] = operation(outer[:, None, :, None], inner[None, :, None, :])
    return combined.reshape(prod(combined.shape[:2]), prod(combined.shape[2:]))


def _within(place: NDArray[np.int64], extent: int, mode: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which pixel along one dimension stands at each place, and whether there is one."""
    within = (place >= 0) & (place < extent)
    if mode == "circular":
        place = place % extent
    elif mode == "reflect":
        place = np.abs(place)
        place = np.where(place >= extent, 2 * (extent - 1) - place, place)
    # what is beyond even that is the nearest pixel, or none
    return np.clip(place, 0, extent - 1), within if mode == "zeros" else np.ones_like(within)
