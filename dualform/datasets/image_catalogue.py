"""All data sets of images by name.

    NAMES                                   # mnist, fashion-mnist, digits, turned-digits
    load("digits").train.labels
    load("mnist", data=Path("~/data"))      # looks there first

The digits come with scikit-learn; the others come in files, which are downloaded where they are not found.
"""

from pathlib import Path

from dualform.datasets import digits, mnist
from dualform.datasets.download import Progress, no_progress
from dualform.datasets.images import ImageSet
from dualform.errors import UnknownName

_EMBEDDED = {"digits": digits.load, "turned-digits": digits.load_turned}
NAMES = (*mnist.SOURCES, *_EMBEDDED)


def load(name: str, data: Path | None = None, progress: Progress = no_progress) -> ImageSet:
    """A data set; `data` and `progress` are for those that come in files."""
    if name in mnist.SOURCES:
        return mnist.load(name, data, progress)
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    raise UnknownName("data set", name, NAMES)
