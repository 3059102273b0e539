"""Load texts by name.

    NAMES                                   # topics, aesop, wikitext-2
    load("topics").train.text
    load("aesop", data=Path("~/data"))      # looks there first

The topics come with Python; the others come in files, which are downloaded if they are not found.
"""

from pathlib import Path

from dualform.datasets import aesop, topics, wikitext
from dualform.datasets.corpus import Corpus
from dualform.datasets.download import Progress, no_progress
from dualform.errors import UnknownName

_EMBEDDED = {topics.NAME: topics.load}
_IN_FILES = {aesop.NAME: aesop.load, wikitext.NAME: wikitext.load}
NAMES = (*_EMBEDDED, *_IN_FILES)


def load(name: str, data: Path | None = None, progress: Progress = no_progress) -> Corpus:
    """Load a text.

    Args:
        name: one of NAMES.
        data: directory to look in first; for texts that come in files.
        progress: called with file name, bytes so far and bytes in all during a download.
    """
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    if name in _IN_FILES:
        return _IN_FILES[name](data, progress)
    raise UnknownName("text", name, NAMES)
