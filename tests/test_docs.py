"""Documents: files they point to are there, and the numbers in the page of results are those of its data."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualform import viewer
from dualform.experiments.sections import number

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_files_a_document_points_to_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(((?!https?:|#)[^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_all_modules_of_the_viewers_page_are_told_of() -> None:
    page = (DOCS / "viewer.md").read_text(encoding="utf-8").partition("## The page")[2]
    root = Path(viewer.__file__).parent / "page"
    modules = {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.js")}
    rows = re.findall(r"^\| `(\w+)/` \| (.*?) \|", page, flags=re.MULTILINE)
    assert {f"{folder}/{name}" for folder, names in rows for name in re.findall(r"`(\w+)`", names)} == modules - {
        "main"
    }


@pytest.mark.parametrize("name", ["single", "joint", "continual"])
def test_the_page_of_results_says_what_its_data_say(name: str) -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert document["experiment"] == name
    shown = [leaf for key in ("accuracy", "table1", "table1_valued", "baselines") for leaf in leaves(document.get(key))]
    assert shown
    for leaf in shown:
        assert f"| {number(leaf['mean'], leaf['std'])} |" in page


@pytest.mark.parametrize("name", ["charlm-aesop", "wordlm-wikitext-2", "charlm-topics", "wordlm-topics"])
def test_the_page_of_language_models_says_what_its_data_say(name: str) -> None:
    page = (RESULTS / "language.md").read_text(encoding="utf-8")
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert f"| test text | {document['perplexity']['test']:.2f} |" in page
    for way in ("attention", "embedding", "anywhere"):
        shares = document["quality"][way]
        assert f"| {100 * shares['token']:.1f} | {100 * shares['following']:.1f} |" in page
    for query in document["queries"]:
        best = query["layers"]["lstm.l0"]["summed"][0]
        assert f"attention {best['score']:,.0f} · {best['visits']} visits" in page


def leaves(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "mean" in value:
            yield value
        else:
            for one in value.values():
                yield from leaves(one)
