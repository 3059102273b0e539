"""Texts to learn from: a part to train with, a part to be tested with, and where their titled pieces begin.

    corpus = text_catalogue.load("aesop")
    corpus.train.titles[0]                  # (0, "The Wolf and the Lamb")
    from_file(Path("letters.txt"))          # any text of one's own

The two parts are never mixed: a position is a place in one of them.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dualform.errors import DataError

Words = Literal["prose", "wikitext"]  # how `tokens` tells words apart

MIN_CHARACTERS = 1000  # characters of a text that can be parted
ALTERNATIVE = "give any text of your own with --text FILE"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Part:
    """A text and what stands where in it. Titled pieces begin with a line, never within a word."""

    text: str
    titles: tuple[tuple[int, str], ...] = ()  # the character at which each titled piece begins, ascending


@dataclass(frozen=True)
class Corpus:
    """A text in a part to learn from and a part to be tested with."""

    name: str
    train: Part
    test: Part
    words: Words = "prose"
    note: str | None = None  # what whoever uses it should be told


def from_file(path: Path) -> Corpus:
    """A file of one's own; the last tenth of it, from a line end if there is one near, is the test text."""
    text = read_text(path).strip()
    if len(text) < MIN_CHARACTERS:
        raise DataError(f"{path} holds {len(text):,} characters; a text to learn from needs {MIN_CHARACTERS:,} or more")
    cut = _cut(text)
    return Corpus(path.name, train=Part(text[:cut]), test=Part(text[cut:]))


def read_text(path: Path) -> str:
    """The text in a UTF-8 file, gzipped or not, with line ends as `\\n` and without a byte order mark."""
    content = _content(path)
    if (zero := content.find(b"\0")) >= 0:
        raise _not_text(path, f"byte {zero:,} is zero")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(path, f"byte {error.start:,}, {content[error.start]:#04x}, is not UTF-8") from error
    if not text.strip("\ufeff \t\r\n"):
        raise DataError(f"{path} holds no text, only {len(content):,} bytes of white space; give another file")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _cut(text: str) -> int:
    """Where the last tenth begins; never so near the end that less than a twentieth is left."""
    tenth = len(text) * 9 // 10
    line_end = text.find("\n", tenth, tenth + len(text) // 20)
    return line_end + 1 if line_end >= 0 else tenth


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check its name, and where you are") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a directory; name a file of text in it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be decompressed ({error}); replace it") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _not_text(path: Path, what: str) -> DataError:
    return DataError(f"{path} is not a text in UTF-8: {what} (counted from 0); save it as UTF-8, or give another file")
