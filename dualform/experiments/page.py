"""A page of results: sections of text, tables and figures, as Markdown and as HTML that opens from the disk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from dualform.experiments.figures import SavedFigure
from dualform.text import Passage, caption, escape_markdown, to_snippet
from dualform.text import to_markdown as passage_markdown


@dataclass(frozen=True)
class Excerpts:
    """Passages of a text that were found for a query."""

    title: str
    query: Passage
    found: Sequence[Passage]


@dataclass(frozen=True)
class Section:
    """A heading with what is under it; the first column of a table names its row."""

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[SavedFigure] = field(default=())
    excerpts: Sequence[Excerpts] = ()


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """For people who read files, and for repositories that show them."""
    return "\n\n".join([f"# {title}", *(_markdown(section) for section in sections)]) + "\n"


def _markdown(section: Section) -> str:
    parts = [f"## {escape_markdown(section.title)}"]
    if section.text:
        parts += [escape_markdown(paragraph) for paragraph in section.text.split("\n\n")]
    if section.columns:
        lines = [section.columns, ["---", *["---:"] * (len(section.columns) - 1)], *section.rows]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    parts += [f"### {one.title}\n\n{_markdown_excerpts(one)}" for one in section.excerpts]
    parts += [f"![{one.caption}]({one.file.as_posix()})\n\n{one.caption}" for one in section.figures]
    return "\n\n".join(parts)


def _markdown_excerpts(one: Excerpts) -> str:
    lines = [
        "|  | passage | where, attention |",
        "| --- | --- | --- |",
        f"| query | {passage_markdown(one.query)} |  |",
    ]
    for rank, passage in enumerate(one.found, start=1):
        lines.append(f"| top-{rank} | {passage_markdown(passage)} | {escape_markdown(caption(passage))} |")
    return "\n".join(lines)


def to_html(title: str, sections: Sequence[Section]) -> str:
    """One page that needs no server and no network, only the figures beside it."""
    contents = "".join(f'<li><a href="#{n}">{escape(one.title)}</a></li>' for n, one in enumerate(sections))
    body = "".join(_html(number, section) for number, section in enumerate(sections))
    return _PAGE.format(title=escape(title), contents=contents, body=body)


def _html(number: int, section: Section) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in section.text.split("\n\n") if text)
    figures = "".join(
        f'<figure><a href="{escape(one.file.with_suffix(".pdf").as_posix())}">'
        f'<img src="{escape(one.file.as_posix())}" alt="{escape(one.caption)}" loading="lazy"></a>'
        f"<figcaption>{escape(one.caption)}</figcaption></figure>"
        for one in section.figures
    )
    excerpts = "".join(f"<h3>{escape(one.title)}</h3>{to_snippet(one.found, one.query)}" for one in section.excerpts)
    content = f"{paragraphs}{_html_table(section)}{excerpts}{figures}"
    return f'<section id="{number}"><h2>{escape(section.title)}</h2>{content}</section>'


def _html_table(section: Section) -> str:
    if not section.columns:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in section.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
  h1 {{ line-height: 1.2; }}
  h2 {{ margin-top: 3rem; border-bottom: 1px solid #ccc; }}
  table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
  th, td {{ padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #e4e4e4; }}
  th:first-child, td:first-child {{ text-align: left; }}
  figure {{ margin: 2rem 0; }}
  img {{ max-width: 100%; height: auto; }}
  figcaption {{ color: #666; font-size: .9rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<ul>{contents}</ul>
{body}
</body>
</html>
"""
