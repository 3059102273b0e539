"""Format a page of results as Markdown and as HTML: sections of text, tables, passages and figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from dualform.experiments.figures import SavedFigure
from dualform.text import Passage, caption, escape_markdown, to_snippet
from dualform.text import to_markdown as passage_markdown


@dataclass(frozen=True)
class Excerpts:
    """Passages of a text behind a query."""

    title: str
    query: Passage
    passages: Sequence[Passage]


@dataclass(frozen=True)
class Section:
    """A section of a page; the first column of its table names the row."""

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[SavedFigure] = field(default=())
    excerpts: Sequence[Excerpts] = ()


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """Return a page as Markdown."""
    return "\n\n".join([f"# {title}", *(_markdown(section) for section in sections)]) + "\n"


def _markdown(section: Section) -> str:
    parts = [f"## {escape_markdown(section.title)}"]
    if section.text:
        parts += [escape_markdown(paragraph) for paragraph in section.text.split("\n\n")]
    if section.columns:
        lines = [section.columns, ["---", *["---:"] * (len(section.columns) - 1)], *section.rows]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    parts += [f"### {excerpts.title}\n\n{_markdown_excerpts(excerpts)}" for excerpts in section.excerpts]
    parts += [f"![{figure.caption}]({figure.file.as_posix()})\n\n{figure.caption}" for figure in section.figures]
    return "\n\n".join(parts)


def _markdown_excerpts(excerpts: Excerpts) -> str:
    lines = [
        "|  | passage | where, attention |",
        "| --- | --- | --- |",
        f"| query | {passage_markdown(excerpts.query)} |  |",
    ]
    for rank, passage in enumerate(excerpts.passages, start=1):
        lines.append(f"| top-{rank} | {passage_markdown(passage)} | {escape_markdown(caption(passage))} |")
    return "\n".join(lines)


def to_html(title: str, sections: Sequence[Section]) -> str:
    """Return a page as HTML that needs no server and no network, only the figures beside it."""
    contents = "".join(f'<li><a href="#{n}">{escape(section.title)}</a></li>' for n, section in enumerate(sections))
    body = "".join(_html(number, section) for number, section in enumerate(sections))
    return _PAGE.format(title=escape(title), contents=contents, body=body)


def _html(number: int, section: Section) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in section.text.split("\n\n") if text)
    figures = "".join(
        f'<figure><a href="{escape(figure.file.with_suffix(".pdf").as_posix())}">'
        f'<img src="{escape(figure.file.as_posix())}" alt="{escape(figure.caption)}" loading="lazy"></a>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        for figure in section.figures
    )
    excerpts = "".join(
        f"<h3>{escape(part.title)}</h3>{to_snippet(part.passages, part.query)}" for part in section.excerpts
    )
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
