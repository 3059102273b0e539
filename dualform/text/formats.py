"""Format passages with their marks: as plain text, for terminals, as Markdown and as HTML.

    to_plain(passage)               # 'a single [d]ay'
    to_rich(passage)                # for a terminal; where styles are lost, use to_plain
    to_snippet(passages, query)     # one piece of HTML for a page or a notebook

Texts are not trusted: control characters are replaced by symbols, and every format escapes its own syntax.
A marked space or line break is shown as ␣ or ⏎; elsewhere a run of them becomes one space.
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
_POSITIVE, _NEGATIVE = "255,160,0", "70,130,255"  # colours of scores


def to_plain(passage: Passage) -> str:
    """Return a passage as plain text, with marks in brackets: `before [token] after`."""
    return "".join(f"[{piece}]" if mark else piece for piece, mark in _pieces(passage))


def to_rich(passage: Passage) -> rich.text.Text:
    """Return a passage for a terminal, with the best mark in reverse video and the others underlined."""
    text = rich.text.Text()
    for piece, mark in _pieces(passage):
        text.append(piece, None if mark is None else "bold reverse" if mark is passage.marks[0] else "bold underline")
    return text


def to_markdown(passage: Passage) -> str:
    """Return a passage as one line of Markdown with marks in bold, for a paragraph, a list or a cell of a table."""
    markdown = ""
    for piece, mark in _pieces(passage):
        escaped = _MARKDOWN.sub(r"\\\1", piece)
        if mark is None:
            markdown += escaped
        elif piece[0].isalnum() and piece[-1].isalnum():
            markdown += f"**{escaped}**"
        else:  # next to punctuation Markdown does not read asterisks as bold
            markdown += f"<b>{escaped}</b>"
    return _escape_line_start(markdown.replace("****", ""))  # which is where one bold ends and another begins


def escape_markdown(words: str) -> str:
    """Escape a line of text, such as a title, so that Markdown shows it as it is."""
    return _escape_line_start(_MARKDOWN.sub(r"\\\1", _visible(words)))


def to_html(passage: Passage, largest: float | None = None) -> str:
    """Return a passage as HTML with marks as `<mark>` elements, stronger the larger their score.

    Args:
        passage: what to format.
        largest: absolute score of the strongest colour; by default the largest one in the passage.
    """
    largest = _largest([passage]) if largest is None else largest
    html = ""
    for piece, mark in _pieces(passage):
        if mark is None:
            html += escape(piece)
            continue
        share = abs(mark.score) / largest if largest else 0.0
        colour = _POSITIVE if mark.score >= 0 else _NEGATIVE
        # Translucent, so that it is readable on light and on dark pages.
        style = f"color:inherit;border-radius:.2em;background:rgba({colour},{0.2 + 0.35 * min(share, 1):.2f})"
        html += f'<mark style="{style}" title="{_number(mark.score)}">{escape(piece)}</mark>'
    return html


def to_snippet(passages: Sequence[Passage], query: Passage | None = None) -> str:
    """Return a list of passages as one piece of HTML that needs no style sheet.

    Args:
        passages: what to list, each with its caption.
        query: what to show above the list, made by `prompt_passage`.
    """
    heading = f'<p style="margin:0 0 .6em;font-size:1.1em">{to_html(query)}</p>' if query else ""
    items = "".join(
        f'<li style="margin:0 0 .6em">{to_html(passage, _largest(passages))}'
        f'<br><small style="opacity:.7">{escape(caption(passage))}</small></li>'
        for passage in passages
    )
    body = f'<ol style="margin:0;padding-left:1.6em">{items}</ol>' if passages else "<p>no passages</p>"
    return f'<div style="font:15px/1.5 system-ui,sans-serif;max-width:60em">{heading}{body}</div>'


def caption(passage: Passage) -> str:
    """Return title, score and visits of a passage: `THE WOLF AND THE LAMB · attention 1,234 · 5 visits`."""
    visits = passage.visits
    facts = (
        None if passage.title is None else _visible(passage.title),
        f"attention {_number(passage.score)}",
        None if visits is None else f"{visits:,} visit{'' if visits == 1 else 's'}",
        None if passage.step is None else f"step {passage.step:,}",
    )
    return " · ".join(fact for fact in facts if fact)


def _pieces(passage: Passage) -> Iterator[tuple[str, Mark | None]]:
    """Yield tokens, each with its mark if it has one, and the separators between them; all safe to show."""
    marks = {mark.position: mark for mark in passage.marks}
    ends_in_space = False
    for position, token in enumerate(passage.tokens, start=passage.start):
        mark = marks.get(position)
        separator = passage.separator if position > passage.start else ""
        for words, marked in ((separator, None), (token, mark)):
            piece = _visible(words, marked is not None)
            if ends_in_space and piece.isspace():
                continue  # line breaks and indentation become one space
            ends_in_space = piece[-1:].isspace() if piece else ends_in_space
            yield piece, marked


def _visible(words: str, marked: bool = False) -> str:
    signs = ""
    for character in words:
        if character.isspace():
            signs += _SPACES.get(character, "␣") if marked else " "
        elif character.isprintable() or character in _JOINERS:
            signs += character
        else:  # U+2400 on: pictures of control characters
            signs += chr(0x2400 + ord(character)) if character < " " else "�"
    return signs or "∅" if marked else signs


def _escape_line_start(markdown: str) -> str:
    return _MARKDOWN_FIRST.sub(r"\1\\\2", markdown.strip())


def _largest(passages: Sequence[Passage]) -> float:
    return max((abs(mark.score) for passage in passages for mark in passage.marks), default=0.0)


def _number(score: float) -> str:
    return f"{score:,.0f}" if 1000 <= abs(score) < 1e9 else f"{score:.4g}"
