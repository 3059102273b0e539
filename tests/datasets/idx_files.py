"""IDX files made for tests."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.uint8]


def encoded(array: Array) -> bytes:
    """An array in IDX, dimension by dimension as the format says."""
    header = bytes([0, 0, 8, array.ndim])
    for size in array.shape:
        header += size.to_bytes(4, "big")
    return header + array.tobytes()


def tiny(train: int = 5, test: int = 3) -> dict[str, Array]:
    """The four arrays of a data set like MNIST, with a handful of images."""
    draw = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = draw.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = draw.integers(0, 10, count, np.uint8)
    return arrays


def write(folder: Path, arrays: Mapping[str, Array], *, gzipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(encoded(array)))
        else:
            (folder / name).write_bytes(encoded(array))
