"""Files of one's own: read as they are meant, parted near a line end, refused with a reason."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.datasets.corpus import MIN_CHARACTERS, from_file, read_text
from dualform.errors import DataError

READ = {
    "plain": (b"two\nlines\n", "two\nlines\n"),
    "byte order mark": (b"\xef\xbb\xbftext", "text"),
    "line ends of another system": (b"two\r\nlines\r\n", "two\nlines\n"),
    "beyond ASCII": ("Æsop’s".encode(), "Æsop’s"),
    "gzipped": (gzip.compress(b"text"), "text"),
    "white space around": (b"\n  text \n", "\n  text \n"),
}

REFUSED = {
    "empty": (b"", "holds no text"),
    "blank": (b" \r\n\t\n", "only 5 bytes of white space"),
    "nothing but a mark": (b"\xef\xbb\xbf\n", "holds no text"),
    "zero bytes": (b"text\0text", "byte 4 is zero"),
    "UTF-16": ("text".encode("utf-16-le"), "save it as UTF-8"),
    "Latin-1": ("ein Käfer".encode("latin-1"), "byte 5, 0xe4, is not UTF-8"),
    "behind a mark": (b"\xef\xbb\xbfa\xff", "byte 4, 0xff, is not UTF-8"),
    "half a gzipped file": (gzip.compress(b"text")[:-9], "cannot be decompressed"),
}


@pytest.mark.parametrize(("content", "text"), READ.values(), ids=READ.keys())
def test_a_text_is_read(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    assert read_text(path) == text


@pytest.mark.parametrize(("content", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_text(path)
    assert str(path) in str(caught.value)
    assert why in str(caught.value)


@given(st.binary(max_size=20))
def test_any_bytes_are_a_text_or_our_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("text") / "file"
    path.write_bytes(content)
    try:
        text = read_text(path)
    except DataError:
        return
    assert text.encode() == content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")


def test_no_file_a_directory_and_a_file_within_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reasons = {"nothing": "there is no file", ".": "is a directory; name a file", "file/text": "cannot read"}
    for name, why in reasons.items():
        with pytest.raises(DataError, match=why):
            read_text(tmp_path / name)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "letters.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_last_tenth_is_for_testing_from_a_line_end_on(tmp_path: Path) -> None:
    text = "\n".join(f"This is line {line}." for line in range(1000))
    corpus = from_file(written(tmp_path, text))
    assert (corpus.name, corpus.words, corpus.note) == ("letters.txt", "prose", None)
    assert corpus.train.text + corpus.test.text == text
    assert corpus.train.text.endswith(".\n")
    assert 0.09 * len(text) < len(corpus.test.text) <= 0.1 * len(text)
    assert corpus.train.titles == corpus.test.titles == ()


def test_a_text_without_line_ends_is_cut_where_the_tenth_begins(tmp_path: Path) -> None:
    for text in ("x" * 2000, "x" * 1950 + "\n" + "x" * 49):  # a line end within it, but too near its end
        corpus = from_file(written(tmp_path, text))
        assert (corpus.train.text, corpus.test.text) == (text[:1800], text[1800:])


def test_white_space_around_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    corpus = from_file(written(tmp_path, "\n" * 5000 + "x" * 2000 + "\n" * 5000))
    assert (len(corpus.train.text), len(corpus.test.text)) == (1800, 200)


def test_a_text_too_short_to_be_parted(tmp_path: Path) -> None:
    from_file(written(tmp_path, "x" * MIN_CHARACTERS))
    with pytest.raises(DataError, match="letters.txt holds 999 characters; .* needs 1,000 or more"):
        from_file(written(tmp_path, "x" * (MIN_CHARACTERS - 1) + "\n" * 100))
