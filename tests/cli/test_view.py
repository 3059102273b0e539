"""`dualform view`: what it needs, and what it says when that is not there. The server is in tests/viewer."""

import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dualform.viewer.port import open_port
from tests.cli.conftest import call, fails

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_named(package: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    reason = f"dualform: this needs {package}, which is not installed: pip install 'dualform[view]'\n"
    assert fails("view", run) == reason


def test_a_port_that_is_taken(run: Path) -> None:
    with open_port("127.0.0.1", 0) as port:
        assert fails("view", run, "--port", port.number).startswith(f"dualform: port {port.number} is taken")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_a_port_that_is_none(run: Path, port: str) -> None:
    assert call("view", run, "--port", port).exit_code == 2


def test_a_model_that_is_not_there(run: Path) -> None:
    assert "no factory in models called 'mlpp'" in fails("view", run, "--model", "models:mlpp")


def test_inputs_that_are_not_there(run: Path) -> None:
    assert "there is no file no.npy" in fails("view", run, "--model", "models:mlp", "--input", "no.npy")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(run: Path, sent: signal.Signals) -> None:
    named = ["--model", "models:mlp", "--input", "inputs.npy", "--no-browser"]
    command = [sys.executable, "-m", "dualform", "view", str(run), *named]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        address = re.search(r"http://(127.0.0.1:\d+)/", started.stdout.readline())
        try:
            assert address is not None
            connection = HTTPConnection(address[1], timeout=60)
            connection.request("POST", "/api/predict", '{"input": {"index": 1}}', {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
        finally:
            started.send_signal(sent)  # the connection is still open, and jobs are under way
        _, errors = started.communicate(timeout=60)
    connection.close()
    assert (started.returncode, errors) == (0, "")
