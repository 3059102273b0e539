"""Where data is looked for: which root comes first, which folders, which names."""

from pathlib import Path

import pytest

from dualform.datasets import places
from dualform.errors import DataError

FILES = ["images", "labels"]


def put(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_roots_in_their_order(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALFORM_DATA", str(tmp_path / "told"))
    given = put(tmp_path / "given")
    assert list(places.roots(given)) == [given, tmp_path / "told", home, tmp_path / "installed"]
    monkeypatch.setenv("DUALFORM_DATA", "")
    assert list(places.roots(None)) == [home, tmp_path / "installed"]


def test_the_first_root_that_has_everything_wins(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALFORM_DATA", str(tmp_path / "told"))
    given = put(tmp_path / "given")
    for root in (tmp_path / "installed", home, tmp_path / "told", given):  # each before the ones so far
        expected = put(root / "ours", *FILES)
        assert places.find(["ours", "theirs/raw"], FILES, given) == expected


def test_folders_in_their_order_and_never_the_root_itself(home: Path) -> None:
    put(home, *FILES)
    assert places.find(["ours", "theirs/raw"], FILES, None) is None
    theirs = put(home / "theirs/raw", *FILES)
    assert places.find(["ours", "theirs/raw"], FILES, None) == theirs
    ours = put(home / "ours", *FILES)
    assert places.find(["ours", "theirs/raw"], FILES, None) == ours


def test_files_of_two_places_are_not_mixed(tmp_path: Path, home: Path) -> None:
    given = tmp_path / "given"
    put(given / "ours", "images")
    put(home / "ours", "labels")
    assert places.find(["ours"], FILES, given) is None
    assert places.missing(given / "ours", FILES) == ["labels"]


def test_plain_or_gzipped_and_plain_first(tmp_path: Path) -> None:
    put(tmp_path, "images.gz", "labels", "labels.gz")
    (tmp_path / "images").mkdir()  # as some unpackers leave it
    assert places.locate(tmp_path, "images") == tmp_path / "images.gz"
    assert places.locate(tmp_path, "labels") == tmp_path / "labels"
    assert places.locate(tmp_path, "others") is None


def test_a_directory_given_has_to_be_there(tmp_path: Path) -> None:
    put(tmp_path, "file")
    for wrong in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(DataError, match=f"no data directory {wrong}"):
            places.find(["ours"], FILES, wrong)


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("DUALFORM_HOME", "~/mine")
    assert places.cache() == tmp_path / "mine"
    monkeypatch.delenv("DUALFORM_HOME")
    assert places.cache() == tmp_path / "xdg/dualform"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert places.cache() == tmp_path / ".cache/dualform"


def test_no_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("DUALFORM_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    ours = put(tmp_path / "ours", *FILES)
    assert places.find(["ours"], FILES, tmp_path) == ours
    with pytest.raises(DataError, match="set DUALFORM_HOME"):
        places.cache()
