"""Handwritten digits that come with scikit-learn: 1,797 images of 8 x 8 pixels, no download.

    digits = load()
    digits.train.raw             # (1437, 64), pixels from 0 to 16
    digits.test.labels           # (360,)
    load_turned().test.raw       # the same 360, turned by a right angle and inverted

Order and split are fixed, so that a row number means the same image everywhere, in both sets.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.datasets.images import ImageSet, Split
from dualform.errors import MissingExtra

CLASS_NAMES = tuple(str(digit) for digit in range(10))
IMAGE_SHAPE = (8, 8)
TRAINING_COUNT = 1437  # images, of 1,797
MAX_PIXEL = 16
_SPLIT_SEED = 0


def load() -> ImageSet:
    """Load all digits, four in five of them for training."""
    pixels, labels = _embedded()
    return _split("digits", CLASS_NAMES, pixels, labels)


def load_turned() -> ImageSet:
    """Load a second task made of the same digits: turned to the left by a right angle, and inverted."""
    pixels, labels = _embedded()
    upright = pixels.reshape(-1, *IMAGE_SHAPE)
    turned = np.rot90(upright, axes=(1, 2)).reshape(pixels.shape)  # (1797, 64)
    return _split("turned-digits", tuple(f"turned {name}" for name in CLASS_NAMES), MAX_PIXEL - turned, labels)


def _split(name: str, class_names: tuple[str, ...], pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> ImageSet:
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(pixels))
    raw, label = torch.from_numpy(pixels[order]), torch.from_numpy(labels[order])
    train, test = (Split(raw[part], label[part]) for part in (slice(None, TRAINING_COUNT), slice(TRAINING_COUNT, None)))
    return ImageSet(name, class_names, IMAGE_SHAPE, train, test)


def _embedded() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "demo") from None
    pixels, labels = load_digits(return_X_y=True)
    return pixels.astype(np.uint8), labels.astype(np.int64)
