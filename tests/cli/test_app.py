"""The command line in general: what it imports, how it fails, and what all commands share."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import dualform
from dualform.cli import app
from dualform.errors import QueryError
from dualform.strict_json import finite
from tests.cli.conftest import call, fails


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["attend", "--help"], ["view", "--help"], ["info", "no/such/run"]]
)
def test_torch_is_imported_only_when_needed(arguments: list[str]) -> None:
    done = python(
        f"import sys; sys.argv = ['dualform', *{arguments!r}]\n"
        "from dualform.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('imported:', [name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules])"
    )
    assert done.stdout.endswith("imported: []\n"), done.stderr


def test_info_needs_no_torch(run: Path) -> None:
    done = python(
        f"import sys; sys.argv = ['dualform', 'info', {str(run)!r}]\n"
        "from dualform.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    assert "24 slots" in done.stdout
    assert done.stdout.endswith("False\n"), done.stderr


def test_every_help_has_an_example() -> None:
    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"reproduce {name}": one for name, one in commands.pop("reproduce").commands.items()}
    assert {"demo", "info", "verify", "attend", "view"} <= set(commands)
    for name, command in commands.items():
        assert command.epilog.startswith(f"Example: dualform {name}")
        assert call(*name.split(), "--help").exit_code == 0


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "dualform", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dualform {dualform.__version__}\n"
    assert done.stderr == ""


def test_a_wrong_option_is_a_usage_error() -> None:
    assert call("info", "--no-such-option").exit_code == 2


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def test_an_interrupt_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(KeyboardInterrupt()))
    result = call("info", run)
    assert (result.exit_code, result.stdout, result.stderr) == (128 + signal.SIGINT, "", "dualform: interrupted\n")


def test_an_unreadable_file_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(PermissionError(13, "Permission denied", "some/file")))
    assert fails("info", run) == "dualform: some/file: Permission denied\n"


def test_a_reason_of_several_lines_becomes_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(QueryError("first\n  second")))
    assert fails("info", run) == "dualform: first second\n"


def test_a_bug_is_not_hidden(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(ZeroDivisionError()))
    assert isinstance(call("info", run).exception, ZeroDivisionError)


@pytest.mark.parametrize("command", ["info", "verify", "attend", "view"])
def test_a_missing_run_is_one_line(tmp_path: Path, command: str) -> None:
    assert "there is no run at" in fails(command, tmp_path / "nowhere")


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dualform", "info", str(run), "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""


def test_json_has_no_infinity() -> None:
    assert finite({"a": [float("inf"), 1.0], "b": float("nan")}) == {"a": [None, 1.0], "b": None}
