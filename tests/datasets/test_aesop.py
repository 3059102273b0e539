"""The fables from a small book: cut by headings, whatever is around them."""

import gzip
import hashlib
from pathlib import Path

import pytest

from dualform.datasets import aesop
from dualform.errors import DataError
from tests.datasets import mirrors
from tests.datasets.books import FABLES, write

CUT = FABLES[FABLES.index("THE WOLF") : FABLES.index("ANNOUNCEMENTS")]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aesop, "MIRRORS", (mirrors.closed(),))
    monkeypatch.setattr(aesop, "SHA256", hashlib.sha256(CUT.encode()).hexdigest())


def test_long_forms_to_learn_from_and_short_ones_to_be_tested_with(tmp_path: Path) -> None:
    write(tmp_path / "aesop", {aesop.FILE: FABLES})
    corpus = aesop.load(tmp_path)
    assert (corpus.name, corpus.words, corpus.note) == ("aesop", "prose", None)
    assert corpus.train.text.startswith("THE WOLF AND THE LAMB\n\n\nONE day")
    assert corpus.train.text.endswith("A FOX was cunning.\n\n\n")
    assert corpus.test.text == "THE WOLF AND THE LAMB\n\n\nA WOLF met a Lamb.\n\n\n"
    assert "[Illustration]" in corpus.train.text


def test_titles_are_written_as_the_contents_write_them(tmp_path: Path) -> None:
    write(tmp_path / "aesop", {aesop.FILE: FABLES})
    corpus = aesop.load(tmp_path)
    titles = ["The Wolf and the Lamb", "The Dog and his Shadow", "THE FOX’S CUNNING"]  # the last is not in them
    assert [title for _, title in corpus.train.titles] == titles
    for at, title in corpus.train.titles:
        assert corpus.train.text.startswith(f"{title.upper()}\n\n\n", at)
    assert corpus.test.titles == ((0, "The Wolf and the Lamb"),)


def test_wrapping_and_line_ends_make_no_difference(tmp_path: Path) -> None:
    write(tmp_path / "one" / "aesop", {aesop.FILE: FABLES})
    wrapped = "\ufeff" + f"*** START ***\n\n\n{FABLES}\n\n*** END ***\n".replace("\n", "\r\n")
    (tmp_path / "other" / "aesop").mkdir(parents=True)
    (tmp_path / "other" / "aesop" / f"{aesop.FILE}.gz").write_bytes(gzip.compress(wrapped.encode()))
    assert aesop.load(tmp_path / "one") == aesop.load(tmp_path / "other")


LACKING = {
    "another book": ("", "no heading THE WOLF AND THE LAMB; replace"),
    "no fable in capitals": (FABLES.replace("THE WOLF", "The Wolf"), "no heading THE WOLF AND THE LAMB; replace"),
    "no appendix": (CUT.replace("APPENDIX", "MORE"), "no heading APPENDIX after"),
    "no short forms": (FABLES.replace("LAMB\n\n\nA WOLF", "EWE\n\n\nA WOLF"), "LAMB after .* LAMB, APPENDIX; replace"),
    "no end": (FABLES.replace("ANNOUNCEMENTS", "Announcements"), "no heading ANNOUNCEMENTS after"),
}


@pytest.mark.parametrize(("text", "what"), LACKING.values(), ids=LACKING.keys())
def test_a_file_without_the_landmarks_is_named(tmp_path: Path, text: str, what: str) -> None:
    folder = write(tmp_path / "aesop", {aesop.FILE: "A preface.\n\n" + text})
    with pytest.raises(DataError, match=what) as caught:
        aesop.load(tmp_path)
    assert str(folder / aesop.FILE) in str(caught.value)


def test_offline_says_what_to_put_where(tmp_path: Path, home: Path) -> None:
    with pytest.raises(
        DataError, match="aesop was not found, and could not be downloaded: .*Connection refused"
    ) as one:
        aesop.load()
    assert f"into {home / 'aesop'}: 49010-0.txt. Or give any text of your own with --text FILE" in str(one.value)
    with pytest.raises(DataError) as other:
        aesop.load(tmp_path)
    assert f"into {tmp_path / 'aesop'}: " in str(other.value)


def test_the_first_mirror_with_these_fables_is_asked_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []
    with mirrors.running() as mirror:
        mirror.files = {
            "page": b"<html>Please log in</html>",
            "other": FABLES.replace("cunning", "clever").encode(),
            "good": b"Other terms of use\r\n" + FABLES.replace("\n", "\r\n").encode(),
        }
        monkeypatch.setattr(aesop, "MIRRORS", tuple(map(mirror.url, ("none", "page", "other", "good", "more"))))
        corpus = aesop.load(progress=lambda *report: reports.append(report))
        assert mirror.asked == ["none", "page", "other", "good"]
        assert reports[-1][0] == aesop.FILE
    assert (home / "aesop" / aesop.FILE).read_bytes().startswith(b"Other terms")
    assert aesop.load() == corpus


def test_mirrors_with_something_else_are_told_apart(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrors.running() as mirror:
        mirror.files = {"page": b"<html>Please log in</html>", "other": FABLES.replace("cunning", "clever").encode()}
        monkeypatch.setattr(aesop, "MIRRORS", (mirror.url("page"), mirror.url("other")))
        with pytest.raises(DataError, match="page: it is not the book of fables; .*other: it is another file"):
            aesop.load()
    assert list((home / "aesop").iterdir()) == []
