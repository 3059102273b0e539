"""Load image data sets by name.

    NAMES                                   # mnist, fashion-mnist, digits, turned-digits, cifar-10
    load("digits").train.labels
    load("mnist", data=Path("~/data"))      # looks there first

The digits come with scikit-learn; the others come in files, which are downloaded if they are not found.
"""

from pathlib import Path

from dualform.datasets import cifar, digits, mnist
from dualform.datasets.download import Progress, no_progress
from dualform.datasets.images import ImageSet
from dualform.errors import UnknownName

_EMBEDDED = {"digits": digits.load, "turned-digits": digits.load_turned}
NAMES = (*mnist.SOURCES, *_EMBEDDED, cifar.NAME)


def load(name: str, data: Path | None = None, progress: Progress = no_progress) -> ImageSet:
    """Load an image data set.

    Args:
        name: one of NAMES.
        data: directory to look in first; for data sets that come in files.
        progress: called with file name, bytes so far and bytes in all during a download.
    """
    if name in mnist.SOURCES:
        return mnist.load(name, data, progress)
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    if name == cifar.NAME:
        return cifar.load(data, progress)
    raise UnknownName("data set", name, NAMES)
