"""Where files of data sets are looked for, and where downloads go.

    folder = find(["mnist", "MNIST/raw"], ["train-labels-idx1-ubyte"], data=Path("~/data"))
    locate(folder, "train-labels-idx1-ubyte")        # the file itself, or gzipped with .gz at its end

The roots, in this order: the directory given, DUALFORM_DATA, the cache, where Debian installs data sets.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from dualform.errors import DataError

INSTALLED = Path("/usr/share/datasets")


def cache() -> Path:
    """Where downloads go: DUALFORM_HOME, or `dualform` among the user's caches."""
    own, everyones = _from_environment("DUALFORM_HOME"), _from_environment("XDG_CACHE_HOME")
    if own:
        return own
    try:
        return (everyones or Path.home() / ".cache") / "dualform"
    except RuntimeError as error:
        raise DataError("there is no home directory to keep data in; set DUALFORM_HOME to a directory") from error


def roots(data: Path | None) -> Iterator[Path]:
    """Directories to look in. One at a time: who has data elsewhere needs no home directory."""
    if data is not None:
        if _kind(data.expanduser()) != stat.S_IFDIR:
            raise DataError(f"there is no data directory {data}")
        yield data.expanduser()
    if told := _from_environment("DUALFORM_DATA"):
        yield told
    yield cache()
    yield INSTALLED


def find(folders: Sequence[str], files: Sequence[str], data: Path | None) -> Path | None:
    """The first of the folders, in the first of the roots, that holds all the files.

    All from one place: the images of one collection with the labels of another would fit, and be nonsense.
    """
    candidates = (root / folder for root in roots(data) for folder in folders)
    return next((candidate for candidate in candidates if not missing(candidate, files)), None)


def missing(folder: Path, files: Sequence[str]) -> list[str]:
    """Which of the files the folder does not hold."""
    return [file for file in files if locate(folder, file) is None]


def locate(folder: Path, file: str) -> Path | None:
    """The file in the folder, plain or gzipped."""
    packings = (folder / file, folder / f"{file}.gz")
    return next((path for path in packings if _kind(path) == stat.S_IFREG), None)


def _kind(path: Path) -> int:
    """File or directory; nothing also for what we may not look at, so that the search goes on elsewhere."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return 0


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser() if value else None
