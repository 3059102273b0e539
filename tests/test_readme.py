"""What the README shows is what happens: its Python runs, its commands exist, its numbers are of their kind."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dualform.cli import app
from tests.markdown import ROOT, blocks, check_command, commands, links, read, run_python, without_measures, words

README = read("README.md")
MAX_WORDS = 500


@pytest.mark.slow
def test_its_python_runs_and_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(["README.md"], {})
    (shown,) = blocks(README, "text")
    assert without_measures(capsys.readouterr().out) == without_measures(shown)


def test_its_commands_exist() -> None:
    for arguments in commands(README):
        check_command(arguments)
        assert CliRunner().invoke(app, [arguments[0], "--help"]).exit_code == 0


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_files_it_points_to_are_there(page: str) -> None:
    for target in links(read(page)):
        assert (ROOT / target).exists(), target


def test_it_is_short() -> None:
    assert len(words(README)) <= MAX_WORDS


def test_words_are_those_of_the_prose() -> None:
    code, table, comment = "```bash\nnot this\n```", "| nor | this |", "<!-- nor\nthis -->"
    page = f"A [link](to/a place) & `code`.\n\n{code}\n\n{table}\n\n{comment}\n![And this](a.png)\n"
    assert words(page) == ["A", "[link]", "`code`.", "![And", "this]"]
