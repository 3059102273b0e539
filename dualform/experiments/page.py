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
    parts = [f"# {title}"]
    for section in sections:
        parts.append(f"## {escape_markdown(section.title)}")
        if section.text:
            parts += [escape_markdown(paragraph) for paragraph in section.text.split("\n\n")]
        if section.columns:
            lines = [section.columns, ["---", *["---:"] * (len(section.columns) - 1)], *section.rows]
            parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
        for excerpts in section.excerpts:
            rows = [
                "|  | passage | where, attention |",
                "| --- | --- | --- |",
                f"| query | {passage_markdown(excerpts.query)} |  |",
            ]
            for rank, passage in enumerate(excerpts.passages, start=1):
                rows.append(f"| top-{rank} | {passage_markdown(passage)} | {escape_markdown(caption(passage))} |")
            parts.append(f"### {excerpts.title}\n\n" + "\n".join(rows))
        parts += [f"![{figure.caption}]({figure.file.as_posix()})\n\n{figure.caption}" for figure in section.figures]
    return "\n\n".join(parts) + "\n"


def to_html(title: str, sections: Sequence[Section]) -> str:
    """Return a page as HTML that needs no server and no network, only the figures beside it."""
    contents = "".join(f'<li><a href="#{n}">{escape(section.title)}</a></li>' for n, section in enumerate(sections))
    body = ""
    for number, section in enumerate(sections):
        body += f'<section id="{number}"><h2>{escape(section.title)}</h2>'
        body += "".join(f"<p>{escape(text)}</p>" for text in section.text.split("\n\n") if text)
        if section.columns:
            head = "".join(f"<th>{escape(name)}</th>" for name in section.columns)
            rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in section.rows)
            cells = "".join(f"<tr>{row}</tr>" for row in rows)
            body += f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
        for excerpts in section.excerpts:
            body += f"<h3>{escape(excerpts.title)}</h3>{to_snippet(excerpts.passages, excerpts.query)}"
        for figure in section.figures:
            words = escape(figure.caption)
            body += (
                f'<figure><a href="{escape(figure.file.with_suffix(".pdf").as_posix())}">'
                f'<img src="{escape(figure.file.as_posix())}" alt="{words}" loading="lazy"></a>'
                f"<figcaption>{words}</figcaption></figure>"
            )
        body += "</section>"
    return _PAGE.format(title=escape(title), contents=contents, body=body)


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
