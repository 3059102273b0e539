"""Files of CIFAR-10 with a few random images, for tests without any data."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dualform.datasets import cifar


def records(count: int, seed: int = 0) -> bytes:
    """Labels and pixels, as they are in a file."""
    generator = np.random.default_rng(seed)
    labels = (np.arange(count) % 10).astype(np.uint8)[:, None]
    return np.concatenate([labels, generator.integers(256, size=(count, 3072), dtype=np.uint8)], axis=1).tobytes()


def tiny(train: Sequence[str] = cifar.TRAIN, count: int = 3) -> dict[str, bytes]:
    """The files of training images, the test images, and the names of classes."""
    files = {file: records(count, seed) for seed, file in enumerate(train)}
    return {**files, cifar.TEST: records(2, seed=9), cifar.CLASSES: "\n".join((*cifar.CLASS_NAMES, "", "")).encode()}


def write(root: Path, files: dict[str, bytes] | None = None) -> Path:
    """Write files where they are looked for below a root."""
    folder = root / cifar.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (tiny() if files is None else files).items():
        (folder / name).write_bytes(content)
    return folder
