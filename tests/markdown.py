"""What stands in a Markdown page: its blocks of code, the commands in them, the files it points to, and its words."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from dualform.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"\d+\.\d+(e[-+]\d+)?|\d{3,}")


def read(path: str) -> str:
    """Return a page by its path from the root of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def run_python(pages: list[str], names: dict[str, object]) -> None:
    """Run the Python of some pages, one after the other, in one namespace."""
    for path in pages:
        for block in blocks(read(path), "python"):
            exec(compile(block, path, "exec"), names)


def without_measures(text: str) -> str:
    """Return a text with numbers that differ between machines as N, and with single spaces."""
    return " ".join(_NUMBER.sub("N", text).split())


def links(page: str) -> list[str]:
    """Return the files that a page points to, without anchors."""
    return re.findall(r"\]\(((?!https?:|#)[^)#]+)", _FENCED.sub("", page))


def words(page: str) -> list[str]:
    """Return the words outside of code blocks, tables, comments, and targets of images and links."""
    prose = re.sub(r"<!--.*?-->", "", _FENCED.sub("", page), flags=re.DOTALL)
    prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    return [word for word in prose.split() if any(character.isalnum() for character in word)]


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words after `dualform` of each line in a block for a shell, without comments."""
    for block in blocks(page, "bash"):
        for line in block.splitlines():
            found = re.search(r"(?:^|&& )(?:\.venv/bin/)?dualform ([^#&]*)", line)
            if found:
                yield found[1].split()


def check_command(arguments: list[str]) -> None:
    """Raise unless there is such a command, and it has the options that are passed."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):  # a group of commands
        name = rest.pop(0) if rest else ""
        assert name in command.commands, f"no command: dualform {' '.join(arguments)}"
        command = command.commands[name]
    known = {"--help", *(name for parameter in command.params for name in parameter.opts)}
    assert {word for word in rest if word.startswith("--")} <= known, f"dualform {' '.join(arguments)}"
