"""Download a file from the first mirror that has it, completely or not at all.

    fetch(["https://a.org/x.gz", "https://b.org/x.gz"], Path("cache/x.gz"), expected="65a5...")

The digest is the SHA-256 of the decompressed bytes: mirrors may compress the same content differently. If they differ
in more than that, or another digest is published, pass a `digest` of your own.
"""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import urlopen

from dualform.errors import DataError

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if the mirror says so
Digest = Callable[[Path], str]  # of a file, in hexadecimal digits

TIMEOUT = 20.0  # seconds without a byte
_CHUNK_BYTES = 1 << 16
_MIRROR_FAILED = (DataError, OSError, HTTPException, EOFError, zlib.error)


def no_progress(file: str, done: int, total: int | None) -> None:
    """Ignore the progress of a download."""


def fetch(
    urls: Sequence[str],
    path: Path,
    expected: str,
    progress: Progress = no_progress,
    *,
    digest: Digest | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """Download a file; a mirror that fails in any way is skipped.

    Args:
        urls: mirrors, tried in this order.
        path: where to put the file; what the mirrors have is gzipped if it ends in `.gz`.
        expected: digest of the right file.
        progress: called with file name, bytes so far and bytes in all.
        digest: how to compute the digest of the file, by default SHA-256 of its decompressed bytes.
        timeout: seconds without a byte until a mirror is given up.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {path.parent} for downloads: {error.strerror or error}") from error
    failures = []
    for url in urls:
        try:
            with atomic_path(path) as temporary:
                with urlopen(url, timeout=timeout) as response, temporary.open("wb") as file:
                    _copy(response, file, partial(progress, path.name))
                if digest is not None:
                    actual = digest(temporary)
                else:
                    with gzip.open(temporary) if path.suffix == ".gz" else temporary.open("rb") as content:
                        actual = hashlib.file_digest(content, "sha256").hexdigest()
                if actual != expected:
                    raise DataError(f"it is another file: its digest is {actual[:12]}..., not {expected[:12]}...")
            return
        except _MIRROR_FAILED as error:
            if isinstance(error, HTTPError):
                error.close()  # it is the response as well, and holds its connection
                reason = f"{error.code} {error.reason}"
            else:
                cause = getattr(error, "reason", error)  # urllib wraps the error of the system
                reason = str(getattr(cause, "strerror", None) or cause) or type(error).__name__
            failures.append(f"{url}: {reason}")
    raise DataError(f"cannot download {path.name} from any mirror ({'; '.join(failures)})")


def unavailable(name: str, folder: Path, files: Sequence[str], why: DataError, instead: str) -> DataError:
    """Return the error for a data set that is neither found nor downloaded.

    Args:
        name: of the data set.
        folder: where the user can put its files.
        files: names of the files.
        why: error of the download.
        instead: what else the user can do.
    """
    return DataError(
        f"{name} was not found, and could not be downloaded: {why}. "
        f"Put these files, gzipped or not, into {folder}: {', '.join(files)}. Or {instead}"
    )


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end; after an error nothing is left."""
    # The process id is in the name, so that two downloads at once do not write into the same file.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:  # after an interruption, too
        temporary.unlink(missing_ok=True)


def _copy(response: HTTPResponse, file: BinaryIO, progress: Callable[[int, int | None], None]) -> None:
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdecimal() else None
    done = 0
    while chunk := response.read(_CHUNK_BYTES):
        file.write(chunk)
        done += len(chunk)
        progress(done, total)
    if total is not None and done != total:  # http.client takes the end of a connection for the end of the file
        raise DataError(f"the connection ended after {done:,} of {total:,} bytes")
    file.flush()
    os.fsync(file.fileno())
