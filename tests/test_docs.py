"""Documents: the site builds, Python runs, commands and files they name are there, figures are those of the data."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.optim import Optimizer

import dualform
from dualform import algebra, errors, kinds, viewer
from dualform.experiments.sections import number
from dualform.inputs import read_inputs
from tests.markdown import DOCS, ROOT, blocks, check_command, commands, links, read, run_python, without_measures

RESULTS = DOCS / "results"
PAGES = sorted(str(page.relative_to(ROOT)) for page in [*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"])

# What paths that are meant to exist begin with: directories of the repository and of the package.
ROOMS = {path.name for home in (ROOT, ROOT / "dualform") for path in home.iterdir() if path.is_dir()} - {
    "build",
    "runs",
}
# Pages whose Python goes on where that of another ends; the page has to say so, by a link.
PREDECESSORS = {
    "docs/guides/recording.md": "docs/quickstart.md",
    "docs/guides/asking.md": "docs/quickstart.md",
    "docs/guides/what-if.md": "docs/quickstart.md",
    "docs/guides/optimisers.md": "docs/quickstart.md",
    "docs/guides/viewer.md": "docs/quickstart.md",
}
# Pages whose Python is run by tests of their own: tests/test_reliability.py, tests/store/test_run.py and
# tests/recorder/test_processes.py.
RUN_ELSEWHERE = {"docs/reliability.md", "docs/internals/format.md", "docs/guides/processes.md"}
WITH_PYTHON = [page for page in PAGES if page not in RUN_ELSEWHERE and blocks(read(page), "python")]


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's news of its successor
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stdout + built.stderr
    for page in (tmp_path / "site").rglob("*.html"):  # nothing is fetched from elsewhere when it is read
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())
        assert not loaded, page


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs_and_prints_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names, known = dict[str, object](), set(kinds.KINDS.values())
    before = PREDECESSORS.get(page)
    if before:
        assert Path(before).name in {Path(target).name for target in links(read(page))}
        run_python([before], names)
        capsys.readouterr()
    run_python([page], names)
    for kind in set(kinds.KINDS.values()) - known:  # what is registered is forgotten afterwards
        kinds.unregister(kind)
    for defined in [value for value in names.values() if isinstance(value, type) and issubclass(value, Optimizer)]:
        algebra.unregister(defined)
    printed = without_measures(capsys.readouterr().out)
    for shown in blocks(read(page), "text"):
        assert without_measures(shown) in printed


@pytest.mark.slow
def test_the_run_of_the_viewers_page_has_what_the_viewer_can_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(["docs/quickstart.md", "docs/guides/viewer.md"], {})
    memory = dualform.load("runs/mine")
    assert set(memory.about) == {"inputs", "class_names", "image_shape"}
    inputs = read_inputs(memory.path / memory.about["inputs"])
    assert inputs.labels is not None
    assert inputs.images is not None
    assert inputs.training_images is not None


@pytest.mark.parametrize("page", PAGES)
def test_commands_a_document_names_exist(page: str) -> None:
    for arguments in commands(read(page)):
        check_command(arguments)
    for module in re.findall(r"python -m ((?:benchmarks|tests)[.\w]*)", read(page)):
        path = ROOT.joinpath(*module.rstrip(".").split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize("page", PAGES)
def test_files_a_document_points_to_are_there(page: str) -> None:
    for target in links(read(page)):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_files_a_document_names_are_there(page: str) -> None:
    for path in re.findall(r"`(\w+/[\w/]*(?:\.py|\.js|\.md)?)`", read(page)):
        if path.split("/")[0] in ROOMS:
            assert (ROOT / path).exists() or (ROOT / "dualform" / path).exists() or "NAME" in path, path


def test_every_error_is_in_the_reference() -> None:
    page = read("docs/api/errors.md")
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(re.findall(r"^::: dualform\.errors\.(\w+)$", page, flags=re.MULTILINE)) == classes
    (tree,) = blocks(page, "text")
    assert " ".join(tree.split()) in " ".join((errors.__doc__ or "").split())


def test_all_modules_of_the_viewers_page_are_told_of() -> None:
    page = read("docs/internals/viewer.md").partition("## The page")[2]
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


def test_the_page_of_the_convolutional_network_says_what_its_data_say() -> None:
    page = (RESULTS / "cifar.md").read_text(encoding="utf-8")
    document = json.loads((RESULTS / "cifar.json").read_text(encoding="utf-8"))
    assert document["accuracy"]["mean"] >= 60
    assert len(document["accuracy"]["values"]) == document["seeds"]
    shown = [leaf for key in ("accuracy", "table1", "baselines", "continual") for leaf in leaves(document[key])]
    assert len(shown) > 30
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
