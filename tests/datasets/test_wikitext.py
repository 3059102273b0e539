"""WikiText-2 from tiny files: found, found in part, downloaded and unpacked, not to be had."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from dualform.datasets import wikitext
from dualform.errors import DataError
from tests.datasets import mirrors
from tests.datasets.books import ARTICLES, write, zipped

INSIDE = {f"wikitext-2/{name}": text for name, text in ARTICLES.items()}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikitext, "MIRRORS", (mirrors.closed(),))


def serve(monkeypatch: pytest.MonkeyPatch, mirror: mirrors.Mirror, members: Mapping[str, str]) -> None:
    """A mirror with an archive that has the right digest."""
    mirror.files = {wikitext.ARCHIVE: zipped(members)}
    monkeypatch.setattr(wikitext, "MIRRORS", (mirrors.closed(), mirror.url(wikitext.ARCHIVE)))
    monkeypatch.setattr(wikitext, "SHA256", hashlib.sha256(mirror.files[wikitext.ARCHIVE]).hexdigest())


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in ARTICLES.items() if name not in names}


@pytest.mark.parametrize("folder", wikitext.FOLDERS)
def test_files_are_found_and_read(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, without(wikitext.VALIDATION))  # which is not needed
    corpus = wikitext.load(tmp_path)
    assert (corpus.name, corpus.words, corpus.note) == ("wikitext-2", "wikitext", None)
    assert corpus.train.text == ARTICLES[wikitext.TRAIN]
    assert corpus.test.text == ARTICLES[wikitext.TEST]


def test_articles_have_titles_and_sections_and_formulas_have_not(tmp_path: Path) -> None:
    write(tmp_path / "wikitext-2", ARTICLES)
    train = wikitext.load(tmp_path).train
    assert [title for _, title in train.titles] == ["Valkyria <unk>", "Tower @-@ bridge"]
    for at, title in train.titles:
        assert train.text.startswith(f" = {title} = \n", at)
        assert train.text[:at].endswith("\n")


def test_a_file_that_begins_with_its_title(tmp_path: Path) -> None:
    write(tmp_path / "wikitext-2", ARTICLES | {wikitext.TRAIN: "= A =\n\nWords .\n\n= = B = =\n\n= C =\n\nWords .\n"})
    assert wikitext.load(tmp_path).train.titles == ((0, "A"), (27, "C"))


def test_without_the_training_split_the_validation_split_is_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "wikitext-2", without(wikitext.TRAIN))
    corpus = wikitext.load(tmp_path)
    assert corpus.note == "trained on the validation split: wiki.train.tokens was not found"
    assert corpus.train.text == ARTICLES[wikitext.VALIDATION]
    assert corpus.train.titles == ((2, "Lobster"),)
    assert corpus.test.text == ARTICLES[wikitext.TEST]


def test_a_training_split_elsewhere_is_better_than_none(tmp_path: Path, home: Path) -> None:
    write(tmp_path / "wikitext-2", without(wikitext.TRAIN))
    write(home / "wikitext-2", ARTICLES)
    corpus = wikitext.load(tmp_path)
    assert (corpus.note, corpus.train.text) == (None, ARTICLES[wikitext.TRAIN])


def test_an_archive_is_downloaded_once_and_unpacked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []
    with mirrors.running() as mirror:
        serve(monkeypatch, mirror, INSIDE | {"wikitext-2/": "", "readme.txt": "Hello"})
        corpus = wikitext.load(progress=lambda *report: reports.append(report))
        assert wikitext.load() == corpus
        assert mirror.asked == [wikitext.ARCHIVE]
    assert reports[-1][0] == wikitext.ARCHIVE
    assert (corpus.note, corpus.train.text) == (None, ARTICLES[wikitext.TRAIN])
    assert sorted(path.name for path in (home / "wikitext-2").iterdir()) == sorted(ARTICLES)


def test_odd_names_in_an_archive_lead_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(tmp_path.rglob("*"))
    with mirrors.running() as mirror:
        serve(monkeypatch, mirror, {f"/../../../{name}": text for name, text in ARTICLES.items()} | {"../evil": "x"})
        wikitext.load()
    written = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert written == {tmp_path / "home" / "wikitext-2" / name for name in ARTICLES}


UNFIT = {
    "no test split": (without(wikitext.TEST), "it holds 0 files wiki.test.tokens, not one"),
    "two of a name": (INSIDE | {f"raw/{wikitext.TRAIN}": "x"}, "it holds 2 files wiki.train.tokens, not one"),
}


@pytest.mark.parametrize(("members", "what"), UNFIT.values(), ids=UNFIT.keys())
def test_half_an_archive_is_not_taken_for_data(
    home: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, str], what: str
) -> None:
    with mirrors.running() as mirror:
        serve(monkeypatch, mirror, members)
        for _ in range(2):  # what the first time left behind is not found the second time
            with pytest.raises(DataError, match=f"cannot unpack {home / 'wikitext-2' / wikitext.ARCHIVE}: {what}"):
                wikitext.load()
        serve(monkeypatch, mirror, INSIDE)
        assert wikitext.load().note is None


def test_an_archive_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrors.running() as mirror:
        serve(monkeypatch, mirror, INSIDE)
        mirror.files[wikitext.ARCHIVE] = b"<html>Please log in</html>"
        with pytest.raises(DataError, match="it is another file"):
            wikitext.load()
        monkeypatch.setattr(wikitext, "SHA256", hashlib.sha256(mirror.files[wikitext.ARCHIVE]).hexdigest())
        with pytest.raises(DataError, match="File is not a zip file"):
            wikitext.load()


def test_offline_says_what_to_put_where(tmp_path: Path) -> None:
    write(tmp_path / "wikitext-2", without(wikitext.TEST))
    with pytest.raises(DataError, match="wikitext-2 was not found, and could not be downloaded: .*refused") as caught:
        wikitext.load(tmp_path)
    assert f"into {tmp_path / 'wikitext-2'}: wiki.test.tokens. Or give any text" in str(caught.value)
