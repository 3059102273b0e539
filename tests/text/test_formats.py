"""What people see of passages."""

import html
import io
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from dualform.table import Table
from dualform.text import (
    Mark,
    Passage,
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
from tests.text.cases import FABLES, bare, fables, marked, sentences, signs, table, text_of


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
