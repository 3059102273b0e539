"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 pixels, found on disk or downloaded.

    data = load("fashion-mnist")
    data.train.raw               # (60000, 784), pixels from 0 to 255
    data.test.labels             # (10000,)

Digests are checked after a download only; of files on disk, shapes, counts and labels are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dualform.datasets import idx, places
from dualform.datasets.download import Progress, fetch, no_progress, unavailable
from dualform.datasets.images import ImageSet, Split
from dualform.errors import DataError, UnknownName

IMAGE_SHAPE = (28, 28)
_IMAGES, _LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
_TRAIN, _TEST = "train", "t10k"
_ALTERNATIVE = "try --dataset digits, which works without any data"


@dataclass(frozen=True)
class Download:
    """Where a data set can be found, and its classes."""

    class_names: tuple[str, ...]
    folders: tuple[str, ...]  # below a root: our own name for it, then torchvision's
    mirrors: tuple[str, ...]
    digests: Mapping[str, str]  # by file name, SHA-256 of the decompressed bytes

    @property
    def files(self) -> list[str]:
        return list(self.digests)


SOURCES = {
    "mnist": Download(
        class_names=tuple(str(digit) for digit in range(10)),
        folders=("mnist", "MNIST/raw"),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        digests={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
    "fashion-mnist": Download(
        class_names=(
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
        ),
        folders=("fashion-mnist", "FashionMNIST/raw"),
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        digests={
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
}  # fmt: skip


def load(name: str, data: Path | None = None, progress: Progress = no_progress) -> ImageSet:
    """Load MNIST or Fashion-MNIST, from one of the usual places or downloaded to the cache.

    Args:
        name: `mnist` or `fashion-mnist`.
        data: directory to look in first.
        progress: called with file name, bytes so far and bytes in all during a download.
    """
    if name not in SOURCES:
        raise UnknownName("data set", name, SOURCES)
    source = SOURCES[name]
    folder = places.find(source.folders, source.files, data)
    if folder is None:
        folder = places.cache() / source.folders[0]
        for file in places.missing(folder, source.files):
            urls = [f"{mirror}{file}.gz" for mirror in source.mirrors]
            try:
                fetch(urls, folder / f"{file}.gz", source.digests[file], progress)
            except DataError as error:
                wanted = next(places.roots(data)) / source.folders[0]
                missing = places.missing(wanted, source.files)
                raise unavailable(name, wanted, missing, error, _ALTERNATIVE) from error
    train, test = (_split(folder, part, len(source.class_names)) for part in (_TRAIN, _TEST))
    return ImageSet(name, source.class_names, IMAGE_SHAPE, train, test)


def _split(folder: Path, part: str, classes: int) -> Split:
    images_path, labels_path = (places.locate(folder, name.format(part)) for name in (_IMAGES, _LABELS))
    if images_path is None or labels_path is None:
        raise DataError(f"files of {folder} were removed before they were read; try again")
    images, labels = idx.read(images_path), idx.read(labels_path)
    if images.ndim != 3 or images.shape[1:] != IMAGE_SHAPE:
        reason = f"an array of shape {images.shape}; expected images of shape (count, 28, 28)"
        raise DataError(f"{images_path} holds {reason}")
    if labels.shape != (len(images),):
        reason = f"labels of shape {labels.shape}; expected one for each of {len(images):,} images"
        raise DataError(f"{labels_path} holds {reason}")
    if labels.max() >= classes:
        raise DataError(f"{labels_path} holds the label {labels.max()}; expected labels from 0 to {classes - 1}")
    raw = torch.from_numpy(images).flatten(start_dim=1)  # (n, 784)
    return Split(raw, torch.from_numpy(labels.astype(np.int64)))
