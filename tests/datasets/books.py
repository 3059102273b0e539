"""Small files made for tests, in the form of those that texts come in."""

import io
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

FABLES = """Terms of use


CONTENTS

    The Wolf and the Lamb                   3
    The Dog and his Shadow                  5


APPENDIX

    The Wolf and the Lamb                   9


ÆSOP’S FABLES


THE WOLF AND THE LAMB


ONE day a Wolf and a Lamb met.

[Illustration]

THE END of this one is sad.


THE DOG AND HIS SHADOW


A DOG saw a dog.


THE FOX’S CUNNING


A FOX was cunning.


APPENDIX


NOTE. Short forms follow.


THE WOLF AND THE LAMB


A WOLF met a Lamb.


ANNOUNCEMENTS


More books.
"""


def _tokens(*lines: str) -> str:
    """Lines with a space at both ends, and blank ones of a single space, as in the real files."""
    return "".join(f" {line} \n" if line else " \n" for line in lines)


ARTICLES = {
    "wiki.train.tokens": _tokens(
        *("", "= Valkyria <unk> =", "", "It is a game .", ""),
        *("= = Gameplay = =", "", "One plays .", "x = 1 =", "= y =", ""),
        *("= Tower @-@ bridge =", "", "A tower ."),
    ),
    "wiki.valid.tokens": _tokens("", "= Lobster =", "", "A lobster is blue ."),
    "wiki.test.tokens": _tokens("", "= Robert =", "", "Robert is a <unk> actor ."),
}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def zipped(files: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()
