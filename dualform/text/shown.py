"""Passages as people see them: in plain text, terminals, Markdown and HTML, with their marks.

    to_plain(passage)               # 'a single [d]ay'
    to_rich(passage)                # for a terminal; where styles are lost, to_plain keeps the marks
    to_snippet(found, query)        # one piece of HTML for a page or a notebook

Texts are foreign: control characters are shown by signs, and each form escapes what it would read as its
own. A space or a line break that is marked is shown as ␣ or ⏎; in the surroundings any of them are one space.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape

import rich.text

from dualform.text.passages import Mark, Passage

_SPACES = {"\n": "⏎", "\r": "⏎", "\t": "⇥"}
_JOINERS = "\u200c\u200d"  # not printable by themselves, but part of how words are written
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|&~$])")
_MARKDOWN_FIRST = re.compile(r"^(\d*)([-+=#.)])")  # lists and headings, at the beginning only
_SUPPORTING, _OPPOSING = "255,160,0", "70,130,255"  # weights above and below zero


def to_plain(passage: Passage) -> str:
    """`before [token] after`."""
    return "".join(f"[{piece}]" if mark else piece for piece, mark in _pieces(passage))


def to_rich(passage: Passage) -> rich.text.Text:
    """For a terminal: the best token stands out, the others are underlined."""
    found = rich.text.Text()
    for piece, mark in _pieces(passage):
        found.append(piece, None if mark is None else "bold reverse" if mark is passage.marks[0] else "bold underline")
    return found


def to_markdown(passage: Passage) -> str:
    """One line with the tokens in bold, fit for a paragraph, a list or the cell of a table."""
    pieces = (_bold(piece) if mark else _MARKDOWN.sub(r"\\\1", piece) for piece, mark in _pieces(passage))
    return _whole_line("".join(pieces).replace("****", ""))  # which is where one bold ends and another begins


def escape_markdown(words: str) -> str:
    """A line of foreign words, such as a title, that Markdown will show as they are."""
    return _whole_line(_MARKDOWN.sub(r"\\\1", _visible(words)))


def to_html(passage: Passage, largest: float | None = None) -> str:
    """Each token in a <mark>; the larger its score, measured by `largest` or its passage's, the stronger."""
    largest = _largest([passage]) if largest is None else largest
    return "".join(_html_mark(piece, mark, largest) if mark else escape(piece) for piece, mark in _pieces(passage))


def to_snippet(found: Sequence[Passage], query: Passage | None = None) -> str:
    """A list of passages under their query: one piece of HTML that needs no style sheet."""
    asked = f'<p style="margin:0 0 .6em;font-size:1.1em">{to_html(query)}</p>' if query else ""
    items = "".join(_html_item(passage, _largest(found)) for passage in found)
    listed = f'<ol style="margin:0;padding-left:1.6em">{items}</ol>' if found else "<p>no passages</p>"
    return f'<div style="font:15px/1.5 system-ui,sans-serif;max-width:60em">{asked}{listed}</div>'


def caption(passage: Passage) -> str:
    """Where a passage is and what its best hit is worth: `THE WOLF AND THE LAMB · attention 1,234 · 5 visits`."""
    visits = passage.visits
    facts = (
        None if passage.title is None else _visible(passage.title),
        f"attention {_number(passage.score)}",
        None if visits is None else f"{visits:,} visit{'' if visits == 1 else 's'}",
        None if passage.step is None else f"step {passage.step:,}",
    )
    return " · ".join(fact for fact in facts if fact)


def _pieces(passage: Passage) -> Iterator[tuple[str, Mark | None]]:
    """Tokens with their marks, and separators between them: everything that is shown, safe to be shown."""
    marks = {mark.position: mark for mark in passage.marks}
    ends_in_space = False
    for position, token in enumerate(passage.tokens, start=passage.start):
        mark = marks.get(position)
        separator = passage.separator if position > passage.start else ""
        for words, marked in ((separator, None), (token, mark)):
            piece = _visible(words, marked is not None)
            if ends_in_space and piece.isspace():
                continue  # line breaks and indentation: one space says as much
            ends_in_space = piece[-1:].isspace() if piece else ends_in_space
            yield piece, marked


def _visible(words: str, marked: bool = False) -> str:
    signs = "".join(_sign(character, marked) for character in words)
    return signs or "∅" if marked else signs


def _sign(character: str, marked: bool) -> str:
    if character.isspace():
        return _SPACES.get(character, "␣") if marked else " "
    if character.isprintable() or character in _JOINERS:
        return character
    return chr(0x2400 + ord(character)) if character < " " else "�"  # U+2400 on: pictures of control characters


def _bold(piece: str) -> str:
    """In asterisks if Markdown takes them for bold within a word too: next to signs it does not."""
    escaped = _MARKDOWN.sub(r"\\\1", piece)
    return f"**{escaped}**" if piece[0].isalnum() and piece[-1].isalnum() else f"<b>{escaped}</b>"


def _whole_line(markdown: str) -> str:
    return _MARKDOWN_FIRST.sub(r"\1\\\2", markdown.strip())


def _html_item(passage: Passage, largest: float) -> str:
    return (
        f'<li style="margin:0 0 .6em">{to_html(passage, largest)}'
        f'<br><small style="opacity:.7">{escape(caption(passage))}</small></li>'
    )


def _html_mark(piece: str, mark: Mark, largest: float) -> str:
    """Shades let the page's background and colour of text through, so that light and dark pages both read well."""
    share = abs(mark.score) / largest if largest else 0.0
    colour = _SUPPORTING if mark.score >= 0 else _OPPOSING
    style = f"color:inherit;border-radius:.2em;background:rgba({colour},{0.2 + 0.35 * min(share, 1):.2f})"
    return f'<mark style="{style}" title="{_number(mark.score)}">{escape(piece)}</mark>'


def _largest(found: Sequence[Passage]) -> float:
    return max((abs(mark.score) for passage in found for mark in passage.marks), default=0.0)


def _number(score: float) -> str:
    return f"{score:,.0f}" if 1000 <= abs(score) < 1e9 else f"{score:.4g}"
