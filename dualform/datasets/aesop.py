"""Aesop's Fables in the words of J. H. Stickney, 1915: the long forms to learn from, the short ones to be tested with.

    corpus = load()
    corpus.train.titles[0]                  # (0, "The Wolf and the Lamb")
    corpus.test.text                        # the appendix, where the first fables are told again

Project Gutenberg wraps its books in terms and notes that change, so the fables are cut out by headings, not by
offsets, and the digest is of what is cut out. Marks such as [Illustration] stay: a passage shown is one of the book.
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

# The contents list the same titles before, but not in capitals; and an appendix, but before the first fable.
LANDMARKS = ("THE WOLF AND THE LAMB", "APPENDIX", "THE WOLF AND THE LAMB", "ANNOUNCEMENTS")
_ALONE = re.compile(r"(?<=\n\n)\S.*(?=\n\n)")
_IN_CONTENTS = re.compile(r"^ +(\S.*?) +\d+$", re.MULTILINE)


def load(data: Path | None = None, progress: Progress = no_progress) -> Corpus:
    """The fables, from below `data` or wherever else they are; else downloaded to the cache."""
    folder = places.find([NAME], [FILE], data)
    if folder is None:
        folder = _downloaded(data, progress)
    path = places.locate(folder, FILE)
    if path is None:
        raise DataError(f"{FILE} went away from {folder} before it was read; try again")
    book = read_text(path)
    first, appendix, second, end = _landmarks(path, book)
    return Corpus(NAME, train=_part(book, first, appendix), test=_part(book, second, end))


def _downloaded(data: Path | None, progress: Progress) -> Path:
    folder = places.cache() / NAME
    try:
        fetch(MIRRORS, folder / FILE, SHA256, progress, digest=_digest)
    except DataError as error:
        raise unavailable(NAME, next(places.roots(data)) / NAME, [FILE], error, ALTERNATIVE) from error
    return folder


def _digest(path: Path) -> str:
    try:
        book = read_text(path)
        first, *_, end = _landmarks(path, book)
    except DataError as error:  # which tells what to do about a file that is there to stay
        raise DataError("it is not the book of fables") from error
    return hashlib.sha256(book[first:end].encode()).hexdigest()


def _landmarks(path: Path, book: str) -> list[int]:
    """Where they are, each after the one before it."""
    headings = _headings(book)
    found = [-1]
    for landmark in LANDMARKS:
        at = next((at for at, heading in headings if at > found[-1] and heading == landmark), None)
        if at is None:
            after = f" after those before it, {', '.join(LANDMARKS[: len(found) - 1])}" if len(found) > 1 else ""
            raise DataError(f"{path} is not the book of fables: no heading {landmark}{after}; replace or remove it")
        found.append(at)
    return found[1:]


def _part(book: str, start: int, end: int) -> Part:
    """The contents know how to write a heading that is in capitals."""
    written = {title.upper(): title for title in _IN_CONTENTS.findall(book)}
    titles = ((at - start, written.get(heading, heading)) for at, heading in _headings(book) if start <= at < end)
    return Part(book[start:end], tuple(titles))


def _headings(book: str) -> tuple[tuple[int, str], ...]:
    """Lines in capitals between blank lines."""
    return tuple((line.start(), line[0]) for line in _ALONE.finditer(book) if line[0].isupper())
