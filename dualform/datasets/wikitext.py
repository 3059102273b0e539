"""WikiText-2: 720 good articles of Wikipedia, two million words, rare ones written <unk>; found on disk or downloaded.

    corpus = load()
    corpus.train.titles[0]                  # (2, "Valkyria Chronicles III")
    corpus.note                             # None; or that the training split was not there

The files come with spaces between all tokens, and are read as they are.
"""

import re
import shutil
import zlib
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from dualform.datasets import places
from dualform.datasets.corpus import ALTERNATIVE, Corpus, Part, read_text
from dualform.datasets.download import Progress, atomic_path, fetch, no_progress, unavailable
from dualform.errors import DataError

NAME = "wikitext-2"
FOLDERS = (NAME, f"{NAME}/{NAME}")  # below a root: the files, or the archive unpacked there
TRAIN, VALIDATION, TEST = "wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"
ARCHIVE = "wikitext-2-v1.zip"
MIRRORS = (
    f"https://s3.amazonaws.com/research.metamind.io/wikitext/{ARCHIVE}",
    f"https://wikitext.smerity.com/{ARCHIVE}",
)
SHA256 = "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"

# One sign on each side: more of them head a section. Blank lines around, for formulas have such signs, too.
_ARTICLE = re.compile(r"(?:\A|^ *\n)( *= (?!= )(\S.*?)(?<! =) = *)(?=\n *$)", re.MULTILINE)


def load(data: Path | None = None, progress: Progress = no_progress) -> Corpus:
    """Load the training and the test split, from one of the usual places or downloaded to the cache.

    If only the validation split is found, it takes the place of the training split, and the corpus has a note.

    Args:
        data: directory to look in first.
        progress: called with file name, bytes so far and bytes in all during a download.
    """
    folder = places.find(FOLDERS, [TRAIN, TEST], data)
    if folder is None and (folder := places.find(FOLDERS, [VALIDATION, TEST], data)):
        note = f"trained on the validation split: {TRAIN} was not found"
        return Corpus(NAME, _part(folder, VALIDATION), _part(folder, TEST), words="wikitext", note=note)
    if folder is None:
        folder = places.cache() / NAME
        try:
            fetch(MIRRORS, folder / ARCHIVE, SHA256, progress)
            _unpack(folder / ARCHIVE)
        except DataError as error:
            wanted = next(places.roots(data)) / NAME
            files = places.missing(wanted, [TRAIN, VALIDATION, TEST])
            raise unavailable(NAME, wanted, files, error, ALTERNATIVE) from error
    return Corpus(NAME, _part(folder, TRAIN), _part(folder, TEST), words="wikitext")


def _part(folder: Path, file: str) -> Part:
    path = places.locate(folder, file)
    if path is None:
        raise DataError(f"{file} was removed from {folder} before it was read; try again")
    text = read_text(path)
    return Part(text, tuple((article.start(1), article[2]) for article in _ARTICLE.finditer(text)))


def _unpack(path: Path) -> None:
    """Unpack the three files beside the archive, and remove it."""
    try:
        with ZipFile(path) as archive:
            # Nothing is found without the test split, so it comes last: otherwise the validation split might be
            # trained on after an interruption.
            for file in (TRAIN, VALIDATION, TEST):
                # By name, whatever folder the archive puts it in: nothing is written elsewhere.
                members = [name for name in archive.namelist() if PurePosixPath(name).name == file]
                if len(members) != 1:
                    raise BadZipFile(f"it holds {len(members)} files {file}, not one")
                with (
                    atomic_path(path.parent / file) as temporary,
                    archive.open(members[0]) as packed,
                    temporary.open("wb") as unpacked,
                ):
                    shutil.copyfileobj(packed, unpacked)
        path.unlink()
    except (BadZipFile, OSError, zlib.error) as error:
        raise DataError(f"cannot unpack {path}: {error}") from error
