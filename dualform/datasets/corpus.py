"""Texts for language models: a training and a test part, and where their titled pieces begin.

    corpus = text_catalogue.load("aesop")
    corpus.train.titles[0]                  # (0, "The Wolf and the Lamb")
    from_file(Path("letters.txt"))          # any text of your own

The two parts are never mixed: a position belongs to one of them.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dualform.errors import DataError

WordStyle = Literal["prose", "wikitext"]  # how a text is split into words, by `tokens`

MIN_CHARACTERS = 1000  # of a text that can be split into training and test part
ALTERNATIVE = "give any text of your own with --text FILE"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Part:
    """The training or the test part of a text. Titled pieces begin with a line, never within a word.

    Attributes:
        text: all of it.
        titles: offset of the first character and title of each titled piece, ascending.
    """

    text: str
    titles: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Corpus:
    """A text in a training and a test part.

    Attributes:
        name: of the text.
        train: part to train on.
        test: part to test on.
        words: how it is split into words.
        note: what its users should know, if anything.
    """

    name: str
    train: Part
    test: Part
    words: WordStyle = "prose"
    note: str | None = None


def from_file(path: Path) -> Corpus:
    """Load a text of your own. Its last tenth, from the next line end if it is near, is the test part.

    Args:
        path: a file in UTF-8, gzipped or not.
    """
    text = read_text(path).strip()
    if len(text) < MIN_CHARACTERS:
        raise DataError(f"{path} holds {len(text):,} characters; a training text needs {MIN_CHARACTERS:,} or more")
    cut = len(text) * 9 // 10
    line_end = text.find("\n", cut, cut + len(text) // 20)  # so near that a twentieth is left for testing
    if line_end >= 0:
        cut = line_end + 1
    return Corpus(path.name, train=Part(text[:cut]), test=Part(text[cut:]))


def read_text(path: Path) -> str:
    """Read a UTF-8 file, gzipped or not; line ends become `\\n`, and a byte order mark is removed."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check its name and the current directory") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a directory; name a file in it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be decompressed ({error}); replace it") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if (zero := content.find(b"\0")) >= 0:
        raise _not_text(path, f"byte {zero:,} is zero")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(path, f"byte {error.start:,}, {content[error.start]:#04x}, is not UTF-8") from error
    if not text.strip("\ufeff \t\r\n"):
        raise DataError(f"{path} holds no text, only {len(content):,} bytes of white space; give another file")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _not_text(path: Path, what: str) -> DataError:
    return DataError(f"{path} is not a text in UTF-8: {what} (counted from 0); save it as UTF-8, or give another file")
