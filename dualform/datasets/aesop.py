"""Aesop's Fables in the version of J. H. Stickney, 1915: trained on the long forms, tested on the short ones.

    corpus = load()
    corpus.train.titles[0]                  # (0, "The Wolf and the Lamb")
    corpus.test.text                        # the appendix, where the first fables are told again

Project Gutenberg wraps its books in terms and notes that change, so the fables are cut out by headings, not by
offsets, and the digest is of the part that is cut out. Marks such as [Illustration] stay: a passage that is shown
can be found in the book.
"""

import hashlib
import re
from pathlib import Path

from dualform.datasets import places
from dualform.datasets.corpus import ALTERNATIVE, Corpus, Part, read_text
from dualform.datasets.download import Progress, fetch, no_progress, unavailable
from dualform.errors import DataError

NAME = "aesop"
FILE = "49010-0.txt"
MIRRORS = (
    f"https://www.gutenberg.org/files/49010/{FILE}",
    "https://www.gutenberg.org/cache/epub/49010/pg49010.txt",
    f"https://gutenberg.pglaf.org/4/9/0/1/49010/{FILE}",
    f"https://raw.githubusercontent.com/gutenbergbooks/49010/aacd71d8f8f5a64a299db27bbb18141984fcc340/{FILE}",
)
SHA256 = "fc79d1417b86a6738496062ed78981d890c7e3d58359677c82f137c868cc1f71"  # from the first landmark to the last

# The table of contents has the same titles, but not in capitals; and an appendix, but before the first fable.
LANDMARKS = ("THE WOLF AND THE LAMB", "APPENDIX", "THE WOLF AND THE LAMB", "ANNOUNCEMENTS")
_ALONE = re.compile(r"(?<=\n\n)\S.*(?=\n\n)")
_IN_CONTENTS = re.compile(r"^ +(\S.*?) +\d+$", re.MULTILINE)


def load(data: Path | None = None, progress: Progress = no_progress) -> Corpus:
    """Load the fables, from one of the usual places or downloaded to the cache.

    Args:
        data: directory to look in first.
        progress: called with file name, bytes so far and bytes in all during a download.
    """
    folder = places.find([NAME], [FILE], data)
    if folder is None:
        folder = places.cache() / NAME
        try:
            fetch(MIRRORS, folder / FILE, SHA256, progress, digest=_digest)
        except DataError as error:
            raise unavailable(NAME, next(places.roots(data)) / NAME, [FILE], error, ALTERNATIVE) from error
    path = places.locate(folder, FILE)
    if path is None:
        raise DataError(f"{FILE} was removed from {folder} before it was read; try again")
    book = read_text(path)
    first, appendix, second, end = _landmarks(path, book)
    return Corpus(NAME, train=_part(book, first, appendix), test=_part(book, second, end))


def _digest(path: Path) -> str:
    try:
        book = read_text(path)
        first, *_, end = _landmarks(path, book)
    except DataError as error:  # its message is for a file on disk, not for a download
        raise DataError("it is not the book of fables") from error
    return hashlib.sha256(book[first:end].encode()).hexdigest()


def _landmarks(path: Path, book: str) -> list[int]:
    """Return the offsets of all landmarks, each after the one before it."""
    headings = _headings(book)
    offsets: list[int] = []
    for landmark in LANDMARKS:
        last = offsets[-1] if offsets else -1
        at = next((at for at, heading in headings if at > last and heading == landmark), None)
        if at is None:
            after = f" after those before it, {', '.join(LANDMARKS[: len(offsets)])}" if offsets else ""
            raise DataError(f"{path} is not the book of fables: no heading {landmark}{after}; replace or remove it")
        offsets.append(at)
    return offsets


def _part(book: str, start: int, end: int) -> Part:
    """Return a part of the book, with titles spelled as in the table of contents instead of in capitals."""
    spelling = {title.upper(): title for title in _IN_CONTENTS.findall(book)}
    titles = ((at - start, spelling.get(heading, heading)) for at, heading in _headings(book) if start <= at < end)
    return Part(book[start:end], tuple(titles))


def _headings(book: str) -> tuple[tuple[int, str], ...]:
    """Return offset and text of lines in capitals between blank lines."""
    return tuple((line.start(), line[0]) for line in _ALONE.finditer(book) if line[0].isupper())
