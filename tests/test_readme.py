"""What the README shows is what happens: its Python runs, its commands exist, its numbers are of their kind."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dualform
from dualform.cli import app
from dualform.viewer.opened_run import open_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


OPTIMISERS, VIEWER = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("optimisers", "viewer"))


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    for block in blocks("python", OPTIMISERS):  # with the README's memory, model and test images
        names["memory"] = dualform.load("runs/digits")
        exec(compile(block, "optimisers.md", "exec"), names)
    for block in blocks("python", VIEWER):
        exec(compile(block, "viewer.md", "exec"), names)
    opened_run = open_run("runs/mine")
    assert (opened_run.kind, list(opened_run.missing)) == ("images", ["model"])
    shown = re.sub(r"\d\.\de-\d\d", "N", capsys.readouterr().out.strip())
    promised = re.sub(r"\d\.\de-\d\d", "N", blocks("text")[0].strip())
    assert shown == promised


def test_the_commands_of_the_readme_exist() -> None:
    commands = re.findall(r"^dualform (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE)
    assert set(commands) == {"demo", "info", "verify", "attend", "view", "report", "reproduce"}
    for command in commands:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_files_the_readme_points_to_are_there() -> None:
    for target in re.findall(r"\]\(((?!https?:)[^)]+)\)", README):
        assert (ROOT / target).exists(), target
