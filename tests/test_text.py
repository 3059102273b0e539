"""Texts and their files, passages around hits, and what people see of them."""

import base64
import html
import io
import json
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from dualform.errors import QueryError, RunError, StorageError, UnknownName
from dualform.table import Table
from dualform.text import (
    Mark,
    Passage,
    Text,
    caption,
    escape_markdown,
    passages,
    prompt_passage,
    to_html,
    to_markdown,
    to_plain,
    to_rich,
    to_snippet,
)

FABLES = (
    "The Wolf ran away as fast as he could, and was not seen there again for many a single day.\n\n"
    "The Hares started together, running as fast as they could to get out of the forest.\n\n"
    "The Mule made room for him as fast as he could, and the Horse went proudly on his way."
)
SENTENCES = (
    "he was known for his contribution to the film and later , in the same year , won a prize for his "
    "contribution as a writer <eos> Her main role was small but it was praised by all of the critics at the time"
)


def text_of(tokens: list[str], separator: str, titles: tuple[tuple[int, str], ...] = ()) -> Text:
    vocabulary = tuple(dict.fromkeys(tokens))
    return Text(np.array([vocabulary.index(token) for token in tokens], np.int64), vocabulary, separator, titles)


def table(*positions: int, **columns: Any) -> Table:
    scores = np.arange(len(positions), 0, -1).astype(float)
    return Table({"position": np.array(positions, np.int64), "score": scores, **columns})


def ends_of(words: str, content: str) -> list[int]:
    """The last position of each occurrence."""
    return [found.end() - 1 for found in re.finditer(words, content)]


def bare(markup: str) -> str:
    """What a browser shows of a piece of HTML."""
    return html.unescape(re.sub("<[^>]*>", "", markup))


fables = text_of(list(FABLES), "", titles=((0, "THE WOLF"), (92, "THE HARES"), (177, "THE MULE")))
sentences = text_of(SENTENCES.split(), " ")

signs = st.sampled_from("abc1 \n.,-+#*_`|<>[]()&$~\\é\x1b\x07\x7f\u202e\ud800\u200d")
tokens_of = {"": signs, " ": st.text(signs, max_size=3)}


@st.composite
def texts(draw: st.DrawFn, most: int = 200) -> Text:
    separator = draw(st.sampled_from(list(tokens_of)))
    tokens = draw(st.lists(tokens_of[separator], min_size=1, max_size=most))
    starts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    return text_of(tokens, separator, tuple((start, draw(st.text(max_size=5))) for start in starts))


@st.composite
def hits(draw: st.DrawFn) -> tuple[Text, Table]:
    text = draw(texts())
    positions = draw(st.lists(st.integers(0, len(text) - 1), max_size=8, unique=True))
    return text, table(*positions)


@st.composite
def marked(draw: st.DrawFn) -> Passage:
    text = draw(texts(most=12))
    positions = draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=4, unique=True))
    return passages(text, table(*positions), most=1)[0]


# Texts


def test_a_text_knows_what_stands_where() -> None:
    assert (fables.token(4), fables.shown(4, 8), sentences.shown(3, 6)) == ("W", "Wolf", "for his contribution")
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


# Files


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


def test_two_million_tokens_load_at_once(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 33_000, 2_000_000)
    Text(ids, tuple(map(str, range(33_000))), " ").save(tmp_path / "text.json")
    began = time.perf_counter()
    np.testing.assert_array_equal(Text.load(tmp_path / "text.json").ids, ids)
    assert time.perf_counter() - began < 3  # a fifth of a second on a quiet machine


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
    "a list": (b"[]", "something else"),
    "a manifest": (b'{"format": "dualform", "version": 1}', "something else"),
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
    assert Text.load(tmp_path / "text.json").shown(0, 3) == "abb"


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


def loads_or_is_our_error(path: Path, encoded: bytes) -> None:
    path.write_bytes(encoded)
    with suppress(RunError):
        Text.load(path)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_text_or_our_error(tmp_path_factory: pytest.TempPathFactory, encoded: bytes) -> None:
    loads_or_is_our_error(tmp_path_factory.mktemp("text") / "x", encoded)


@given(st.integers(0, len(content()) - 1), st.integers(0, 2), st.binary(max_size=3))
def test_damage_never_goes_unseen(tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, instead: bytes) -> None:
    path = tmp_path_factory.mktemp("text") / "text.json"
    path.write_bytes(content()[:at] + instead + content()[at + cut :])
    try:
        loaded = Text.load(path)
    except RunError:
        return
    # What is left is damage that says the same, such as a space more between two fields.
    assert (loaded.shown(0, 3), loaded.titles) == ("abb", ((0, "A"), (2, "B")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@given(st.sampled_from(["version", "separator", "vocabulary", "titles", "ids"]), json_values)
def test_any_values_are_a_text_or_our_error(tmp_path_factory: pytest.TempPathFactory, name: str, value: object) -> None:
    loads_or_is_our_error(tmp_path_factory.mktemp("text") / "x", content(**{name: value}))


# Passages


def test_as_fast_as() -> None:
    positions = ends_of("as fast as", FABLES)
    found = passages(fables, table(positions[1], positions[2], positions[0]), around=28)
    assert [to_plain(passage) for passage in found] == [
        "together, running as fast a[s] they could to get out of",
        "made room for him as fast a[s] he could, and the Horse",
        "The Wolf ran away as fast a[s] he could, and was not seen",
    ]
    assert [passage.title for passage in found] == ["THE HARES", "THE MULE", "THE WOLF"]
    assert [passage.score for passage in found] == [3, 2, 1]


def test_for_his_contribution() -> None:
    first, second = (at for at, word in enumerate(SENTENCES.split()) if word == "contribution")
    found = passages(sentences, table(second, first), around=2)
    assert [to_plain(passage) for passage in found] == [
        "for his [contribution] as a",
        "for his [contribution] to the",
    ]
    joined = passages(sentences, table(second, first))
    assert [(one.start, one.end, one.score) for one in joined] == [(0, 35, 2)]
    assert [mark.position for mark in joined[0].marks] == [second, first]


def test_how_far_a_passage_reaches_by_itself() -> None:
    middle = FABLES.index("together")
    (characters,) = passages(fables, table(middle))
    assert middle - 60 <= characters.start <= middle - 50
    assert middle + 50 <= characters.end <= middle + 61
    (words,) = passages(sentences, table(20))
    assert (words.start, words.end) == (8, 33)


@pytest.mark.parametrize(
    ("content", "at", "shown"),
    [
        ("one two three four", 8, "two [t]hree"),  # the words at both ends would be cut
        ("one  \n two", 4, "one [␣] two"),  # at the ends of a text there is nothing to cut
        ("aaaaaaaaaaaaaaaaaaaaa", 10, "aaaaaa[a]aaaaaa"),  # nor a place to cut at within one word
        ("        x        ", 8, "[x]"),
        ("                 ", 8, " [␣] "),
    ],
)
def test_words_are_not_cut_in_half(content: str, at: int, shown: str) -> None:
    (passage,) = passages(text_of(list(content), ""), table(at), around=6)
    assert to_plain(passage) == shown


def test_pieces_of_words_are_words_where_space_is() -> None:
    text = text_of([" run", "ning", " fast", "er", " still", "er"], "")
    (passage,) = passages(text, table(2), around=2)
    assert to_plain(passage) == " running[␣fast]er"


@given(hits(), st.integers(0, 30))
def test_every_hit_is_in_one_passage(case: tuple[Text, Table], around: int) -> None:
    text, hit = case
    found = passages(text, hit, most=1000, around=around)
    marks = [(mark.position, mark.score) for passage in found for mark in passage.marks]
    assert sorted(marks) == sorted(zip(hit["position"].tolist(), hit["score"].tolist(), strict=True))
    for passage in found:
        assert passage.tokens == text.tokens(passage.start, passage.end)
        assert all(passage.start <= mark.position < passage.end for mark in passage.marks)
        assert [mark.score for mark in passage.marks] == sorted((mark.score for mark in passage.marks), reverse=True)
        assert passage.title == text.title_at(passage.marks[0].position)


@given(hits(), st.integers(0, 30), st.integers(1, 3))
def test_passages_are_apart_and_best_first(case: tuple[Text, Table], around: int, most: int) -> None:
    found = passages(*case, most=most, around=around)
    assert len(found) <= most
    assert [passage.score for passage in found] == sorted((passage.score for passage in found), reverse=True)
    places = sorted((passage.start, passage.end) for passage in found)
    assert all(end + 3 < start for (_, end), (start, _) in pairwise(places))


def test_hits_fill_passages_until_one_more_would_be_needed() -> None:
    text = text_of(["word"] * 100, " ")
    found = passages(text, table(10, 50, 12, 90, 52), most=2, around=1)
    assert [[mark.position for mark in passage.marks] for passage in found] == [[10, 12], [50]]


def test_a_hit_may_join_two_passages() -> None:
    found = passages(text_of(["word"] * 100, " "), table(10, 90, 20, 15), most=3, around=2)
    assert [[mark.position for mark in passage.marks] for passage in found] == [[10, 20, 15], [90]]
    assert found[0].score == 4


def test_of_one_position_the_first_row_counts() -> None:
    (passage,) = passages(fables, table(5, 5))
    assert passage.marks == (Mark(5, 2.0),)


def test_a_passage_as_data() -> None:
    hit = table(1, visits=np.array([7]), step=np.array([120]), query=np.array([0]))
    (passage,) = passages(text_of(["Her", "main", "role"], " ", titles=((0, "Ada"),)), hit)
    assert (passage.visits, passage.step) == (7, 120)
    assert json.loads(json.dumps(passage.to_dict())) == {
        "start": 0,
        "end": 3,
        "tokens": ["Her", "main", "role"],
        "separator": " ",
        "marks": [{"position": 1, "score": 1.0, "visits": 7, "step": 120}],
        "score": 1.0,
        "title": "Ada",
        "visits": 7,
        "step": 120,
    }


@pytest.mark.parametrize(
    ("hit", "choices", "what"),
    [
        (table(1, 2, query=np.array([0, 1])), {}, r"choose with .where\(query=...\)"),
        (table(1, 44), {}, "position 44 is not in the text, which has 44 tokens"),
        (table(-1), {}, "position -1 is not in the text"),
        (Table({"position": np.array([0.5]), "score": np.array([1.0])}), {}, "whole numbers"),
        (Table({"position": np.array([0]), "score": np.array([np.nan])}), {}, "NaN"),
        (table(1), {"most": 0}, "most must be at least 1, not 0"),
        (table(1), {"around": -1}, "around at least 0, not -1"),
    ],
)
def test_questions_that_do_not_fit(hit: Table, choices: dict[str, int], what: str) -> None:
    with pytest.raises(QueryError, match=what):
        passages(sentences, hit, **choices)


def test_a_table_without_positions_says_what_it_has() -> None:
    with pytest.raises(UnknownName, match="no column 'position'; there is 'score'"):
        passages(sentences, Table({"score": np.ones(1)}))


def test_no_hits_no_passages() -> None:
    assert passages(fables, table()) == []
    assert passages(fables, Table({"position": np.empty(0), "score": np.empty(0)})) == []
    assert "no passages" in to_snippet([])


def test_a_prompt_is_shown_like_a_passage() -> None:
    assert to_plain(prompt_passage("At ", separator="")) == "At[␣]"
    assert to_markdown(prompt_passage(["Her", "principal"], separator=" ")) == "Her **principal**"
    with pytest.raises(QueryError, match="prompt is empty"):
        prompt_passage([], separator="")


# What people see


def without_surprises(passage: Passage) -> str:
    """What every form shows once its marks are taken away."""
    return to_plain(Passage(passage.start, passage.end, passage.tokens, passage.separator, (Mark(-1, 0.0),)))


def spaces_alike(words: str) -> str:
    return re.sub("[ ␣⏎∅]+", "", words)


@given(marked())
def test_without_marks_every_form_shows_the_same(passage: Passage) -> None:
    plain = spaces_alike(without_surprises(passage))
    assert spaces_alike(to_rich(passage).plain) == plain
    assert spaces_alike(bare(to_html(passage))) == plain
    assert spaces_alike(bare(rendered(to_markdown(passage)))) == plain
    assert to_plain(passage).count("[") == plain.count("[") + len(passage.marks)


def test_the_surroundings_are_the_text() -> None:
    (passage,) = passages(fables, table(100), around=1000)
    assert without_surprises(passage) == " ".join(FABLES.split())
    assert bare(to_html(passage)) == to_rich(passage).plain == " ".join(FABLES.split())


@pytest.mark.parametrize("shown", [to_plain, to_markdown, to_html, lambda passage: to_rich(passage).plain])
@given(marked())
def test_nothing_shown_moves_a_cursor(shown: Callable[[Passage], str], passage: Passage) -> None:
    line = shown(passage)
    assert all(character.isprintable() or character == "\u200d" for character in line)
    line.encode()


def test_a_terminal_is_sent_no_control_characters() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80, no_color=True)
    out.print(to_rich(prompt_passage(["\x1b[2J\x9b", "[red]x", "\x1b]0;owned\x07"], separator="\r\n")))
    sent = out.file.getvalue()  # type: ignore[attr-defined]
    assert sent == "␛[2J�  [red]x  \x1b[1;7m␛]0;owned␇\x1b[0m\n"


def test_the_best_token_stands_out_in_a_terminal() -> None:
    (passage,) = passages(sentences, table(5, 3))
    shown = to_rich(passage)
    assert [(shown.plain[span.start : span.end], span.style) for span in shown.spans] == [
        ("for", "bold underline"),
        ("contribution", "bold reverse"),
    ]


MARKED = {  # tokens and which of them is marked, in plain text and in Markdown
    "a letter": ("a day", 2, "a [d]ay", "a **d**ay"),
    "a space": ("a day", 1, "a[␣]day", "a<b>␣</b>day"),
    "a line break": ("a\n\nday", 1, "a[⏎] day", "a<b>⏎</b> day"),
    "a tab": ("a\tday", 1, "a[⇥]day", "a<b>⇥</b>day"),
    "a sign": ("1*2", 1, "1[*]2", "1<b>\\*</b>2"),
    "a control character": ("a\0b", 1, "a[␀]b", "a<b>␀</b>b"),
    "the first of a list": ("- x", 2, "- [x]", "\\- **x**"),
    "the first of a numbered list": ("12. x", 4, "12. [x]", "12\\. **x**"),
}


@pytest.mark.parametrize(("tokens", "at", "plain", "markdown"), MARKED.values(), ids=MARKED.keys())
def test_marks_can_be_seen(tokens: str, at: int, plain: str, markdown: str) -> None:
    (passage,) = passages(text_of(list(tokens), ""), table(at))
    assert (to_plain(passage), to_markdown(passage)) == (plain, markdown)


def test_an_empty_token_can_be_seen() -> None:
    (passage,) = passages(text_of(["a", "", "b"], " "), table(1))
    assert to_plain(passage) == "a [∅] b"


def rendered(markdown: str, cell: bool = False) -> str:
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return str(reader.render(f"| passage |\n|---|\n| {markdown} |\n" if cell else markdown)).strip()


@given(marked())
def test_markdown_is_bold_where_the_marks_are_and_nothing_else(passage: Passage) -> None:
    pieces = {mark.position - passage.start for mark in passage.marks}
    expected = "".join(to_plain(prompt_passage([passage.tokens[at]], ""))[1:-1] for at in sorted(pieces))
    for cell, tags in ((False, {"p"}), (True, {"table", "thead", "tbody", "tr", "th", "td"})):
        shown = rendered(to_markdown(passage), cell)
        assert set(re.findall(r"</?(\w+)", shown)) - {"b", "strong"} == tags
        bold = re.findall(r"<(?:b|strong)>(.*?)</(?:b|strong)>", shown, re.DOTALL)
        assert html.unescape("".join(bold)) == expected
    assert shown.count("<td>") == 1


@given(st.text(signs, min_size=1))
def test_titles_are_not_read_as_markdown(title: str) -> None:
    shown = rendered(f"x {escape_markdown(title)}")
    assert set(re.findall(r"</?(\w+)", shown)) == {"p"}
    assert "\n" not in shown


def test_shades_follow_scores() -> None:
    hit = Table({"position": np.array([0, 2, 4]), "score": np.array([8.0, -4.0, 0.0])})
    (passage,) = passages(text_of(list("a<b>c"), ""), hit)
    assert re.findall(r"rgba\(([^)]*)\)", to_html(passage)) == ["255,160,0,0.55", "70,130,255,0.38", "255,160,0,0.20"]
    assert re.findall(r"rgba\(([^)]*)\)", to_html(passage, largest=16))[0] == "255,160,0,0.38"
    nothing = Passage(0, 1, ("a",), "", (Mark(0, 0.0),))
    assert "255,160,0,0.20" in to_html(nothing)


def test_a_snippet_has_the_query_and_every_passage() -> None:
    hit = table(3, 40, visits=np.array([1, 1200]), step=np.array([5, 6]))
    text = text_of(["<i>"] * 50, " ", titles=((0, "Tom & Jerry"),))
    snippet = to_snippet(passages(text, hit, around=2), prompt_passage(["Her", "<b>"], " "))
    assert snippet.startswith("<div")
    assert snippet.count("<li") == 2
    assert "Her <mark" in snippet
    assert "Tom &amp; Jerry · attention 2 · 1 visit · step 5" in snippet
    assert "1,200 visits" in snippet
    assert set(re.findall(r"<(\w+)", snippet)) == {"div", "p", "ol", "li", "mark", "br", "small"}


def test_captions_leave_out_what_is_not_known() -> None:
    assert caption(Passage(0, 1, ("a",), "", (Mark(0, 0.12345),))) == "attention 0.1235"
    assert caption(Passage(0, 1, ("a",), "", (Mark(0, -12345.6),), "A\x1b")) == "A␛ · attention -12,346"
