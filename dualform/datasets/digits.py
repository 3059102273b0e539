"""Handwritten digits that come with scikit-learn: 1,797 images of 8 x 8 pixels, no download.

    digits = load()
    digits.train.images          # (1437, 64), standardised
    digits.test.labels           # (360,)

The order and the split are fixed, so that row numbers mean the same everywhere.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualform.errors import MissingExtra

CLASS_NAMES = tuple(str(digit) for digit in range(10))
IMAGE_SHAPE = (8, 8)
TRAINING = 1437  # of 1,797
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Split:
    """Images in the same order as networks see them (`images`), as people see them (`raw`), and labels."""

    images: Tensor  # (n, 64) float32, standardised by the training set
    raw: Tensor  # (n, 64) uint8, ink from 0 to 16
    labels: Tensor  # (n,) int64


@dataclass(frozen=True)
class Digits:
    train: Split
    test: Split


def load() -> Digits:
    """All digits, four in five of them for training."""
    pixels, labels = _embedded()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(pixels))
    raw, label = torch.from_numpy(pixels[order]), torch.from_numpy(labels[order])
    ink = raw[:TRAINING].float()
    # One mean and deviation for all pixels: some border pixels are never inked, their own would be 0.
    images = (raw.float() - ink.mean()) / ink.std()
    parts = (slice(None, TRAINING), slice(TRAINING, None))
    train, test = (Split(images[part].contiguous(), raw[part], label[part]) for part in parts)
    return Digits(train, test)


def _embedded() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "demo") from None
    pixels, labels = load_digits(return_X_y=True)
    return pixels.astype(np.uint8), labels.astype(np.int64)
