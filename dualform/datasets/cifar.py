"""CIFAR-10: 50,000 + 10,000 images in colour, 32 x 32 pixels in ten classes, found on disk or downloaded.

    data = load()
    data.train.raw               # (50000, 3072), pixels from 0 to 255: all red ones, then green, then blue
    data.note                    # None; or which of the five files of training images there are

This is its binary layout: records of one byte for the label and 3,072 for the image. Any of the five files of training
images will do, one after the other. The digest is checked after a download only; of files on disk, lengths and labels.
"""

import gzip
import hashlib
import shutil
import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.datasets import places
from dualform.datasets.download import Progress, atomic_path, fetch, no_progress, unavailable
from dualform.datasets.images import ImageSet, Split
from dualform.errors import DataError

NAME = "cifar-10"
FOLDER = "cifar-10-batches-bin"  # below a root, and in the archive
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST, CLASSES = "test_batch.bin", "batches.meta.txt"
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGE_SHAPE = (3, 32, 32)
ARCHIVE = "cifar-10-binary.tar.gz"
MIRRORS = (f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",)
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # of the archive as it is, published beside it

_IMAGE_BYTES = 3 * 32 * 32
_RECORD_BYTES = 1 + _IMAGE_BYTES
_MAX_FILE_BYTES = 10_000 * _RECORD_BYTES
_ALTERNATIVE = "try --dataset digits, which works without any data"


def load(data: Path | None = None, progress: Progress = no_progress) -> ImageSet:
    """Load CIFAR-10, from one of the usual places or downloaded to the cache.

    Args:
        data: directory to look in first.
        progress: called with file name, bytes so far and bytes in all during a download.
    """
    folder = next((root / FOLDER for root in places.roots(data) if _is_usable(root / FOLDER)), None)
    if folder is None:
        folder = places.cache() / FOLDER
        try:
            fetch(MIRRORS, folder / ARCHIVE, MD5, progress, digest=_md5)
            _unpack(folder / ARCHIVE)
        except DataError as error:
            wanted = next(places.roots(data)) / FOLDER
            raise unavailable(NAME, wanted, places.missing(wanted, [*TRAIN, TEST]), error, _ALTERNATIVE) from error
    _check_classes(folder)
    files = [file for file in TRAIN if places.locate(folder, file) is not None]
    parts = [_split(folder, file) for file in files]
    train = Split(torch.cat([part.raw for part in parts]), torch.cat([part.labels for part in parts]))
    note = None if len(files) == len(TRAIN) else f"{len(files)} of its 5 files of training images: {', '.join(files)}"
    return ImageSet(NAME, CLASS_NAMES, IMAGE_SHAPE, train, _split(folder, TEST), note)


def _is_usable(folder: Path) -> bool:
    """Return whether there are test images, and any training images."""
    return not places.missing(folder, [TEST]) and len(places.missing(folder, TRAIN)) < len(TRAIN)


def _split(folder: Path, file: str) -> Split:
    path = places.locate(folder, file)
    if path is None:
        raise DataError(f"{file} was removed from {folder} before it was read; try again")
    records = _read(path)  # (n, 3073)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASS_NAMES):
        row = int(labels.argmax())
        reason = f"the label {labels[row]} in record {row:,}; expected labels from 0 to {len(CLASS_NAMES) - 1}"
        raise DataError(f"corrupt CIFAR-10 file {path}: it holds {reason}; replace or remove it")
    return Split(torch.from_numpy(records[:, 1:].copy()), torch.from_numpy(labels))


def _read(path: Path) -> NDArray[np.uint8]:
    """Return the records of a file, gzipped or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)  # no more, for a gzipped file may hold far more than it seems to
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"corrupt CIFAR-10 file {path}: it cannot be decompressed ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if not content or len(content) % _RECORD_BYTES or len(content) > _MAX_FILE_BYTES:
        length = f"more than {_MAX_FILE_BYTES:,}" if len(content) > _MAX_FILE_BYTES else f"{len(content):,}"
        reason = f"{length} bytes; expected 1 to 10,000 records of {_RECORD_BYTES:,} bytes, a label and an image"
        raise DataError(f"corrupt CIFAR-10 file {path}: it holds {reason}; replace or remove it")
    return np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)


def _check_classes(folder: Path) -> None:
    """Raise if the folder names other classes: another data set in the same layout."""
    path = folder / CLASSES
    try:
        with path.open("rb") as file:
            names = tuple(file.read(1000).decode("utf-8", "replace").split())
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if names != CLASS_NAMES:
        raise DataError(
            f"{path} names the classes {', '.join(names[:12])}; those of CIFAR-10 are {', '.join(CLASS_NAMES)}"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(path: Path) -> None:
    """Unpack the images beside the archive, and remove it."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            # Nothing is found without the test images, so they come last: otherwise a part of the training images
            # might be taken for all after an interruption.
            for file in (CLASSES, *TRAIN, TEST):
                member = tarfile.data_filter(archive.getmember(f"{FOLDER}/{file}"), str(path.parent))
                packed = archive.extractfile(member) if member.isreg() else None  # neither a link nor a device
                if packed is None or member.size > _MAX_FILE_BYTES:
                    raise DataError(f"cannot unpack {path}: {file} is no file of at most {_MAX_FILE_BYTES:,} bytes")
                with atomic_path(path.parent / file) as temporary, packed, temporary.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
        path.unlink()
    except (KeyError, tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot unpack {path}: {error}") from error
