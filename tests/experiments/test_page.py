"""Pages of results: Markdown and HTML of the same sections."""

from html.parser import HTMLParser
from pathlib import Path

from dualform.experiments.figures import SavedFigure
from dualform.experiments.page import Excerpts, Section, to_html, to_markdown
from dualform.text import prompt_passage

SECTIONS = [
    Section("Words & signs", "One <b>.\n\nTwo."),
    Section("Numbers", columns=("", "paper", "here"), rows=[["layer-0", "17.2 ± 2.7", "16.0"]]),
    Section("Figures", figures=[SavedFigure(Path("figures/a.png"), "A caption.")]),
    Section("Passages", excerpts=[Excerpts("Summed", prompt_passage("At ", ""), [prompt_passage("at*d", "")])]),
]


class Seen(HTMLParser):
    """The tags of a page that refer to something, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markdown() -> None:
    text = to_markdown("Title", SECTIONS)
    assert text.startswith("# Title\n\n## Words \\& signs\n\nOne \\<b\\>.\n\nTwo.\n\n")
    assert "|  | paper | here |\n| --- | ---: | ---: |\n| layer-0 | 17.2 ± 2.7 | 16.0 |" in text
    assert "![A caption.](figures/a.png)" in text
    assert "### Summed\n\n" in text
    assert "| query | At<b>␣</b> |  |\n| top-1 | at\\***d** | attention 1 |" in text


def test_html_needs_nothing_but_the_figures_beside_it() -> None:
    seen = Seen(to_html("Title", SECTIONS))
    assert [target for target in seen.targets if not target.startswith("#")] == ["figures/a.pdf", "figures/a.png"]
    assert "One <b>." in seen.text
    assert "Words & signs" in seen.text
    assert "Summed" in seen.text
    assert "at*d" in seen.text
