"""Ports, what the terminal says, the browser, and the end by Ctrl-C."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from dualform.errors import CannotServe
from dualform.viewer import port as ports
from dualform.viewer import serve as module
from dualform.viewer.port import Port, open_port
from dualform.viewer.serve import announcement, serve
from tests.viewer.served import StubHandler, ask, connected, post, request

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> Iterator[Port]:
    with open_port("127.0.0.1", 0) as found:
        yield found


def test_a_port_that_was_asked_for_is_that_one_or_none(port: Port) -> None:
    with pytest.raises(CannotServe, match=f"port {port.number} is taken; pass another --port, or none"):
        open_port("127.0.0.1", port.number)


def test_without_a_number_the_next_free_one_is_found(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FIRST_PORT", port.number)
    with open_port("127.0.0.1", None) as found:
        assert port.number < found.number < port.number + 100


def test_when_none_is_free_it_says_so(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FIRST_PORT", port.number)
    monkeypatch.setattr(ports, "_PORTS_TRIED", 1)
    with pytest.raises(CannotServe, match=f"no port from {port.number} to {port.number} is free; pass --port"):
        open_port("127.0.0.1", None)


@pytest.mark.parametrize("host", ["no.such.name.invalid", "", "x" * 70, "192.0.2.1"])
def test_a_host_that_is_none(host: str) -> None:
    with pytest.raises(CannotServe):
        open_port(host, None)


def has_ipv6() -> bool:
    try:
        with open_port("::1", 0):
            return True
    except CannotServe:
        return False


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}/"),
        ("0.0.0.0", "http://127.0.0.1:{}/"),
        pytest.param("::1", "http://[::1]:{}/", marks=NEEDS_IPV6),
        pytest.param("::", "http://[::1]:{}/", marks=NEEDS_IPV6),
    ],
)
def test_the_address_is_one_that_opens(host: str, url: str) -> None:
    with open_port(host, 0) as port:
        assert port.url == url.format(port.number)
        assert port.hosts.allow(port.url.split("/")[2])


def test_a_server_for_others_goes_by_its_name_and_addresses() -> None:
    with open_port("0.0.0.0", 0) as port:
        assert port.hosts.allow(f"{socket.gethostname()}:{port.number}")
        assert port.hosts.allow(f"192.0.2.7:{port.number}")
        assert not port.hosts.allow(f"evil.example:{port.number}")
        assert not port.hosts.allow("192.0.2.7:80")


def test_a_name_is_allowed_as_it_was_given(port: Port) -> None:
    named = Port(port.socket, "Lab")
    assert named.hosts.allow(f"lab:{port.number}")
    assert not port.hosts.allow(f"lab:{port.number}")


def test_the_terminal_says_where_and_how(port: Port) -> None:
    first, forward, last = announcement(Path("runs/demo"), port)
    assert first == f"runs/demo is at http://127.0.0.1:{port.number}/"
    assert forward.startswith(f"from another machine: ssh -L {port.number}:127.0.0.1:{port.number} ")
    assert last == "Ctrl-C ends it"


def test_the_terminal_warns_where_others_can_look() -> None:
    with open_port("0.0.0.0", 0) as port:
        assert "warning: anyone who can reach this machine can look at the run" in announcement(Path("run"), port)


@pytest.mark.parametrize(("screen", "wanted", "seen"), [
    ("DISPLAY", True, True), ("WAYLAND_DISPLAY", True, True), (None, True, False), ("DISPLAY", False, False),
])  # fmt: skip
def test_a_browser_opens_where_there_is_a_screen(
    port: Port, screen: str | None, wanted: bool, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Queue[str] = Queue()
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if screen:
        monkeypatch.setenv(screen, ":0")
    monkeypatch.setattr("webbrowser.open", opened.put)
    monkeypatch.setattr(module.Server, "run", lambda self, sockets: None)
    handler = StubHandler()
    serve(Path("run"), handler, port, browser=wanted)
    assert handler.closed
    if seen:
        assert opened.get(timeout=10) == port.url
    else:
        assert opened.empty()


@contextmanager
def program(*arguments: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A server in a process of its own, and its port."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    started = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert started.stdout is not None
    try:
        line = started.stdout.readline()
        found = re.search(r"http://127.0.0.1:(\d+)/", line)
        assert found, line + started.communicate(timeout=10)[1]
        yield started, int(found[1])
    finally:
        started.kill()
        started.communicate()


def ends_at_once(started: "subprocess.Popen[str]", sent: signal.Signals) -> None:
    started.send_signal(sent)
    _, errors = started.communicate(timeout=10)  # it takes less than one, if the machine is not busy
    assert (started.returncode, errors) == (0, "")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_all_that_is_going_on(sent: signal.Signals) -> None:
    with program("tests.viewer.served") as (started, port):
        assert post(port, "echo", {"a": 1}).json() == {"a": 1}
        with connected(port), connected(port) as begun, connected(port) as waiting, connected(port) as deaf:
            begun.sendall(request("echo", "Content-Length: 100", b"{"))
            waiting.sendall(request("hold", "Content-Length: 2", b"{}"))
            deaf.sendall(request("large", "Content-Length: 2", b"{}") * 100)
            time.sleep(0.3)
            ends_at_once(started, sent)


def test_two_servers_get_two_ports() -> None:
    with program("tests.viewer.served") as (_, first), program("tests.viewer.served") as (_, second):
        assert first != second
        assert ask(first, "GET", "/").status == ask(second, "GET", "/").status == 200
