"""Find the files of data sets on disk.

    folder = find(["mnist", "MNIST/raw"], ["train-labels-idx1-ubyte"], data=Path("~/data"))
    locate(folder, "train-labels-idx1-ubyte")        # the file, or the file with .gz at its end

Searched in this order: a directory that the user names, DUALFORM_DATA, the cache, where Debian installs data sets.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from dualform.errors import DataError

INSTALLED = Path("/usr/share/datasets")


def cache() -> Path:
    """Return the directory for downloads: DUALFORM_HOME, or `dualform` in the user's cache directory."""
    own, shared = _from_environment("DUALFORM_HOME"), _from_environment("XDG_CACHE_HOME")
    if own:
        return own
    try:
        return (shared or Path.home() / ".cache") / "dualform"
    except RuntimeError as error:
        raise DataError("there is no home directory to keep data in; set DUALFORM_HOME to a directory") from error


def roots(data: Path | None) -> Iterator[Path]:
    """Yield the directories to look in, one at a time: where data are found early, no home directory is needed.

    Args:
        data: directory to look in first.
    """
    if data is not None:
        if _file_type(data.expanduser()) != stat.S_IFDIR:
            raise DataError(f"there is no data directory {data}")
        yield data.expanduser()
    if from_environment := _from_environment("DUALFORM_DATA"):
        yield from_environment
    yield cache()
    yield INSTALLED


def find(folders: Sequence[str], files: Sequence[str], data: Path | None) -> Path | None:
    """Return the first folder that holds all the files, or None.

    One folder has to hold them all: images of one data set would fit to labels of another, but mean nothing.

    Args:
        folders: names to look for in each root.
        files: names of the files, which may be gzipped.
        data: directory to look in first.
    """
    candidates = (root / folder for root in roots(data) for folder in folders)
    return next((candidate for candidate in candidates if not missing(candidate, files)), None)


def missing(folder: Path, files: Sequence[str]) -> list[str]:
    """Return the files that the folder does not hold."""
    return [file for file in files if locate(folder, file) is None]


def locate(folder: Path, file: str) -> Path | None:
    """Return the path of a file in a folder, plain or gzipped, or None."""
    candidates = (folder / file, folder / f"{file}.gz")
    return next((path for path in candidates if _file_type(path) == stat.S_IFREG), None)


def _file_type(path: Path) -> int:
    """Return whether it is a file or a directory; 0 also for what may not be read, so that the search goes on."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return 0


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser() if value else None
