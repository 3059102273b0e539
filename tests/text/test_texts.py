"""Texts and their files."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.errors import QueryError, RunError, StorageError
from dualform.text import (
    Text,
)
from tests.text.cases import (
    fables,
    sentences,
    text_of,
    texts,
)


def test_a_text_knows_what_stands_where() -> None:
    assert (fables.token(4), fables.excerpt(4, 8), sentences.excerpt(3, 6)) == ("W", "Wolf", "for his contribution")
    assert sentences.tokens(4, 6) == ("his", "contribution")
    assert [fables.title_at(position) for position in (0, 91, 92, 263)] == [
        "THE WOLF",
        "THE WOLF",
        "THE HARES",
        "THE MULE",
    ]
    assert text_of(["a"], "", titles=((1, "later"),)).title_at(0) is None
    assert repr(sentences) == "Text(44 tokens, vocabulary of 34, 0 titles)"


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, 1000), (5, 4)])
def test_what_is_not_in_the_text_is_an_error(start: int, end: int) -> None:
    with pytest.raises(QueryError, match="not all in the text, which has 44 tokens"):
        sentences.tokens(start, end)


@given(texts())
def test_what_was_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, text: Text) -> None:
    path = tmp_path_factory.mktemp("text") / "text.json"
    text.save(path)
    loaded = Text.load(path)
    np.testing.assert_array_equal(loaded.ids, text.ids)
    assert loaded.ids.dtype == np.int64
    assert (loaded.vocabulary, loaded.separator, loaded.titles) == (text.vocabulary, text.separator, text.titles)


def test_the_bytes_of_the_format(tmp_path: Path) -> None:
    text_of(list("abéa"), "", titles=((1, "B"),)).save(tmp_path / "text.json")
    assert (tmp_path / "text.json").read_bytes() == (
        b'{"format": "dualform text", "version": 1, "separator": "", "vocabulary": ["a", "b", "\\u00e9"], '
        b'"titles": [[1, "B"]], "ids": "AAAAAAEAAAACAAAAAAAAAA==", "crc32": 4047056650}'
    )


def test_a_text_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="its ids go from 0 to 7, its vocabulary has 1 tokens"):
        Text(np.array([0, 7]), ("a",), "").save(tmp_path / "text.json")
    with pytest.raises(StorageError, match="No such file"):
        fables.save(tmp_path / "no" / "text.json")
    assert list(tmp_path.iterdir()) == []


def content(**changes: Any) -> bytes:
    """A file by somebody who knows the format, checksums and all; None leaves a field out."""
    sound = {
        "format": "dualform text", "version": 1, "separator": "", "vocabulary": ["a", "b"],
        "titles": [[0, "A"], [2, "B"]], "ids": numbers(0, 1, 1),
    }  # fmt: skip
    changed = {name: value for name, value in {**sound, **changes}.items() if value is not None}
    crc32 = zlib.crc32(json.dumps(changed, sort_keys=True).encode())
    return json.dumps({"crc32": crc32, **changed}).encode()


def numbers(*ids: int) -> str:
    return base64.b64encode(np.array(ids, "<i4").tobytes()).decode()


BAD = {
    "nothing": (b"", "Expecting value"),
    "not JSON": (b"<html></html>", "Expecting value"),
    "not text": (b"\xff\xfe\x00", "decode"),
    "deeply nested": (b"[" * 200_000, "nested too deeply"),
    "a deeply nested vocabulary": (content().replace(b'["a"', b"[" * 100_000 + b'"a"'), "nested too deeply"),
    "a huge number": (b"9" * 5000, "integer string conversion"),
    "a list": (b"[]", "its format is not 'dualform text'"),
    "a manifest": (b'{"format": "dualform", "version": 1}', "its format is not"),
    "of the future": (content(version=2), "version 2, this dualform reads 1"),
    "edited": (content().replace(b'"A"', b'"Z"'), "checksum"),
    "without a checksum": (b'{"format": "dualform text", "version": 1}', "checksum"),
    "truncated": (content()[:-20], "delimiter|Unterminated|Expecting"),
    "no ids": (content(ids=None), "ids are not a string"),
    "a list of ids": (content(ids=[0, 1]), "ids are not a string"),
    "not base64": (content(ids="AAA*"), "base64"),
    "ids beyond ASCII": (content(ids="äöü"), "ASCII"),
    "half a number": (content(ids="AAAA"), "within a number"),
    "an id too large": (content(ids=numbers(0, 2, 1)), "from 0 to 2, its vocabulary has 2"),
    "an id below zero": (content(ids=numbers(0, -1, 1)), "from -1 to 1"),
    "no vocabulary": (content(vocabulary=None), "vocabulary is not a list of strings"),
    "a vocabulary of numbers": (content(vocabulary=["a", 1]), "vocabulary is not a list of strings"),
    "a vocabulary that is a string": (content(vocabulary="ab"), "vocabulary is not a list of strings"),
    "no separator": (content(separator=None), "separator is not a string"),
    "no titles": (content(titles=None), "titles are not pairs"),
    "titles that are no pairs": (content(titles=[[0, "A", 1]]), "titles are not pairs"),
    "a title at no position": (content(titles=[[True, "A"]]), "titles are not pairs"),
    "a title that is no string": (content(titles=[[0, None]]), "titles are not pairs"),
    "titles out of order": (content(titles=[[2, "B"], [0, "A"]]), "order"),
    "a title before the text": (content(titles=[[-1, "A"]]), "not in the text"),
    "a title after the text": (content(titles=[[4, "A"]]), "not in the text"),
}


def test_the_bad_files_differ_from_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_bytes(content())
    assert Text.load(tmp_path / "text.json").excerpt(0, 3) == "abb"


@pytest.mark.parametrize(("encoded", "what"), BAD.values(), ids=BAD.keys())
def test_foreign_files_are_named(tmp_path: Path, encoded: bytes, what: str) -> None:
    path = tmp_path / "text.json"
    path.write_bytes(encoded)
    with pytest.raises(RunError, match=what) as caught:
        Text.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["missing", ".", "a\0b"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match=re.escape(str(tmp_path))):
        Text.load(tmp_path / name)


def is_sound_or_our_error(path: Path, encoded: bytes) -> bool:
    """Whether a file is refused by our own error, or is a text in which every position can be shown."""
    path.write_bytes(encoded)
    try:
        loaded = Text.load(path)
    except RunError as error:
        return str(path) in str(error)
    return len(loaded.tokens(0, len(loaded))) == len(loaded)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_text_or_our_error(tmp_path_factory: pytest.TempPathFactory, encoded: bytes) -> None:
    assert is_sound_or_our_error(tmp_path_factory.mktemp("text") / "x", encoded)


@given(st.integers(0, len(content()) - 1), st.integers(0, 2), st.binary(max_size=3))
def test_damage_never_goes_unseen(tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, instead: bytes) -> None:
    path = tmp_path_factory.mktemp("text") / "text.json"
    path.write_bytes(content()[:at] + instead + content()[at + cut :])
    try:
        loaded = Text.load(path)
    except RunError:
        return
    # What is left is damage that says the same, such as a space more between two fields.
    assert (loaded.excerpt(0, 3), loaded.titles) == ("abb", ((0, "A"), (2, "B")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@given(st.sampled_from(["version", "separator", "vocabulary", "titles", "ids"]), json_values)
def test_any_values_are_a_text_or_our_error(tmp_path_factory: pytest.TempPathFactory, name: str, value: object) -> None:
    assert is_sound_or_our_error(tmp_path_factory.mktemp("text") / "x", content(**{name: value}))
