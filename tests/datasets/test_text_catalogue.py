"""Texts by name."""

from pathlib import Path

import pytest

from dualform.datasets import text_catalogue
from dualform.errors import UnknownName
from tests.datasets.books import ARTICLES, FABLES, write


def test_every_name_loads_its_own_text(tmp_path: Path) -> None:
    write(tmp_path / "aesop", {"49010-0.txt": FABLES})
    write(tmp_path / "wikitext-2", ARTICLES)
    assert text_catalogue.NAMES == ("topics", "aesop", "wikitext-2")
    for name in text_catalogue.NAMES:
        assert text_catalogue.load(name, tmp_path).name == name


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownName, match="no text 'bible'; choose from 'topics', 'aesop', 'wikitext-2'"):
        text_catalogue.load("bible")
