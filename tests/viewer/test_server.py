"""The server of the viewer: files, requests, answers, and what every answer carries."""

import base64
import gzip
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualform.viewer import connection, server
from dualform.viewer.guard import Hosts
from dualform.viewer.page_files import Page, read_page
from tests.viewer.served import StubHandler, ask, connected, post, raw, reply, request, served, soon

pytestmark = pytest.mark.slow

SAFETY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    (tmp_path / "index.html").write_text('<script type="importmap"> __IMPORT_MAP__\n</script>ü')
    (tmp_path / "main.js").write_text("import 'viewer/core/other'")
    (tmp_path / "core").mkdir()
    (tmp_path / "od d").mkdir()
    (tmp_path / "od d" / "state.js").write_text("odd")
    (tmp_path / "core" / "other.js").write_text("/* " + "long " * 2000 + "*/")
    (tmp_path / "style.css").write_text("p {}")
    (tmp_path / "sign.svg").write_text("<svg/>")
    (tmp_path / "secret.py").write_text("secret")
    (tmp_path / "od d.js").write_text("odd")
    return read_page(tmp_path)


@pytest.fixture
def handler() -> StubHandler:
    return StubHandler()


@pytest.fixture
def port(handler: StubHandler, page: Page) -> Iterator[int]:
    with served(handler, page) as found:
        yield found


def test_the_page_has_the_modules_there_are(port: int) -> None:
    found = ask(port, "GET", "/")
    script = re.search(r'<script type="importmap">(.*?)</script>', found.body.decode(), re.DOTALL)
    assert found.status == 200
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert script is not None
    modules = {"viewer/main": "/page/main.js", "viewer/core/other": "/page/core/other.js"}
    assert json.loads(script[1]) == {"imports": modules}


def test_the_policy_names_the_import_map_as_it_stands(port: int) -> None:
    found = ask(port, "GET", "/")
    script = found.body[found.body.index(b">") + 1 : found.body.index(b"</script>")]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    assert found.headers["content-security-policy"] == POLICY.format(f" 'sha256-{digest}'")


@pytest.mark.parametrize(
    ("name", "kind"), [("main.js", ".js"), ("core/other.js", ".js"), ("style.css", ".css"), ("sign.svg", ".svg")]
)
def test_files_have_their_types(port: int, name: str, kind: str) -> None:
    found = ask(port, "GET", f"/page/{name}")
    assert (found.status, found.headers["content-type"]) == (200, f"{TYPES[kind]}; charset=utf-8")
    assert found.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name",
    [
        "secret.py",
        "od%20d.js",
        "od%20d/state.js",
        "index.html",
        "",
        "main",
        "MAIN.JS",
        "main.js/",
        "no.js",
        "other.js",
        "core",
        "core/",
        "core//other.js",
        "core/../main.js",
        "../main.js",
        "./main.js",
    ],
)
def test_no_other_file_is_there(port: int, name: str) -> None:
    found = ask(port, "GET", f"/page/{name}")
    assert (found.status, found.error()) == (404, "there is nothing here")


def test_every_file_of_the_real_page_is_served(handler: StubHandler) -> None:
    real = read_page()
    with served(handler) as port:
        index = ask(port, "GET", "/").body.decode()
        assert "__IMPORT_MAP__" not in index
        for name, file in real.files.items():
            found = ask(port, "GET", f"/page/{name}")
            assert (found.status, found.body) == (200, file.content)
            assert found.headers["content-type"].startswith(TYPES[Path(name).suffix])
        for name in re.findall(r'(?:src|href)="(/[^"]*)"', index):
            assert ask(port, "GET", name).status == 200, name


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
def test_what_a_browser_has_is_not_sent_again(port: int, path: str) -> None:
    first = ask(port, "GET", path)
    for known in (first.headers["etag"], f'"other", {first.headers["etag"]}'):
        again = ask(port, "GET", path, headers={"If-None-Match": known})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert ask(port, "GET", path, headers={"If-None-Match": '"other"'}).body == first.body


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/core/other.js", "/favicon.ico"])
def test_head_is_get_without_a_body(port: int, path: str) -> None:
    whole, head = ask(port, "GET", path), ask(port, "HEAD", path)
    assert (head.status, head.body) == (whole.status, b"")
    assert head.headers.get("content-length") == whole.headers.get("content-length")


def test_there_is_no_icon(port: int) -> None:
    assert ask(port, "GET", "/favicon.ico").status == 204


def test_a_request_is_answered(port: int) -> None:
    found = post(port, "echo", {"input": {"index": 3}, "text": "ü"})
    assert (found.status, found.json()) == (200, {"input": {"index": 3}, "text": "ü"})
    assert found.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_be_called_so_in_more_words(port: int, kind: str) -> None:
    assert ask(port, "POST", "/api/echo", b'{"a": 1}', {"Content-Type": kind}).json() == {"a": 1}


def test_a_body_may_come_in_parts(port: int) -> None:
    found = raw(port, request("echo", "Transfer-Encoding: chunked", b'3\r\n{"a\r\n5\r\n": 1}\r\n0\r\n\r\n'))
    assert found.json() == {"a": 1}


def test_the_largest_request_is_answered(port: int) -> None:
    text = "x" * (server.MAX_BODY_BYTES - len('{"a": ""}'))
    assert post(port, "echo", {"a": text}).json() == {"a": text}


def test_what_is_no_number_is_null(port: int) -> None:
    assert post(port, "odd", {}).json() == {"scores": [None, None, 1.5], "text": "\ud800 ü"}


def test_a_large_answer_is_zipped_for_those_who_can_read_it(port: int) -> None:
    kind = {"Content-Type": "application/json"}
    plain = ask(port, "POST", "/api/large", b"{}", kind)
    zipped = ask(port, "POST", "/api/large", b"{}", {**kind, "Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert len(zipped.body) < len(plain.body) / 2
    assert gzip.decompress(zipped.body) == plain.body


def test_a_refusal_says_why(port: int) -> None:
    found = post(port, "wrong", {})
    assert (found.status, found.json()) == (422, {"error": "there is no input 7"})


def test_a_refusal_knows_its_status_and_the_job_it_waits_for(port: int) -> None:
    found = post(port, "prepare", {})
    expected = {"error": "the first requests are being prepared", "job": "spotlight"}
    assert (found.status, found.json(), found.headers["retry-after"]) == (503, expected, "1")


@pytest.mark.parametrize(
    ("name", "kind"), [("break", "ZeroDivisionError"), ("stop", "StopIteration"), ("shapeless", "TypeError")]
)
def test_a_bug_is_told_to_the_terminal(port: int, name: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        found = post(port, name, {})
    assert found.status == 500
    assert found.error() == f"something is wrong in the viewer itself ({kind}); the terminal says more"
    assert "Traceback" in caplog.text
    assert kind in caplog.text
    assert post(port, "echo", {"still": "there"}).status == 200


def test_every_answer_carries_the_same_headers(port: int) -> None:
    answers = [
        ask(port, "GET", "/"),
        ask(port, "HEAD", "/"),
        ask(port, "GET", "/page/main.js"),
        ask(port, "GET", "/page/main.js", headers={"If-None-Match": ask(port, "GET", "/page/main.js").headers["etag"]}),
        ask(port, "GET", "/favicon.ico"),
        ask(port, "GET", "/nowhere"),
        ask(port, "DELETE", "/"),
        ask(port, "GET", "/", headers={"Host": "elsewhere.example"}),
        ask(port, "GET", "/", headers={"Origin": "http://elsewhere.example"}),
        *(post(port, name, {}) for name in (*StubHandler.names[:-1], "unknown")),
        post(port, "echo", []),
        raw(port, b"nonsense\r\n\r\n"),
    ]
    assert {one.status for one in answers} == {200, 204, 304, 400, 403, 404, 405, 421, 422, 500, 503}
    for one in answers:
        assert SAFETY.items() <= one.headers.items()
        assert one.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "server" not in one.headers


def test_no_more_requests_wait_than_there_is_room_for(
    handler: StubHandler, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_PENDING_REQUESTS", 3)
    with served(handler, page) as port:
        clients = [connected(port) for _ in range(3)]
        for number, client in enumerate(clients, start=1):
            client.sendall(request("hold", "Content-Length: 2", b"{}"))
            soon(lambda number=number: len(handler.futures) == number)
        full = post(port, "echo", {})
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert full.error() == "too many requests are pending; try again in a moment"
        handler.gate.set()
        assert [reply(client).status for client in clients] == [200] * 3
        for client in clients:
            client.close()
        assert post(port, "echo", {}).status == 200


def test_who_leaves_takes_the_request_along(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PENDING_REQUESTS", 2)
    handler = StubHandler(workers=1)
    with served(handler, page) as port:
        clients = [connected(port) for _ in range(2)]
        for number, client in enumerate(clients, start=1):
            client.sendall(request("hold", "Content-Length: 2", b"{}"))
            soon(lambda number=number: len(handler.futures) == number)
        for client in clients:
            client.close()
        soon(handler.futures[1].cancelled)  # it had not begun
        assert handler.futures[0].running()
        handler.gate.set()
        soon(handler.futures[0].done)
        assert [post(port, "echo", {}).status for _ in range(5)] == [200] * 5


def test_a_request_that_does_not_arrive_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.2)
    found = raw(port, request("echo", "Content-Length: 100", b'{"a": '))
    assert (found.status, found.headers["connection"]) == (408, "close")
    assert found.error() == "the request has not arrived within 0.2 s"


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("begun", [b"GET / HTT", b"GET / HTTP/1.1\r\nHost: "])
def test_a_request_that_does_not_end_is_cut(
    port: int, before: bytes, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.2)
    with connected(port) as client:
        if before:
            client.sendall(before)
            assert reply(client).status == 200
        client.sendall(begun)
        assert client.recv(1) == b""


def test_who_says_nothing_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.2)
    with connected(port) as client:
        assert client.recv(1) == b""


def test_who_does_not_stop_sending_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.5)
    with connected(port) as client:
        client.sendall(request("echo", "Transfer-Encoding: chunked"))
        with pytest.raises(OSError, match="Broken pipe|reset"):
            while True:
                client.sendall(b"400\r\n" + b"x" * 0x400 + b"\r\n")


def test_who_does_not_read_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READING_SECONDS", 0.2)
    with connected(port) as client, pytest.raises(OSError, match="Broken pipe|reset"):
        while True:  # answers are not read until the sockets between are full
            client.sendall(request("large", "Content-Length: 2", b"{}"))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7", "localhost:7", "LocalHost", "[::1]:80", "[::1]", "lab:7", "10.0.0.2:7"]
)
def test_own_names(host: str) -> None:
    assert Hosts(7, frozenset({"lab", "10.0.0.2"})).allow(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "lab", "lab:8", "lab.:7", "lab:7 ", "other:7", "localhost.example:7", "127.0.0.1.example", "a@localhost"),
        *("localhost:", "localhost:x", "localhost:7:7", "localhost:123456", "localhost/", "127.0.0.2:7", "10.0.0.3:7"),
        "[::2]:7",
    ],
)
def test_other_names(host: str) -> None:
    assert not Hosts(7, frozenset({"lab", "10.0.0.2"})).allow(host)


@pytest.mark.parametrize(("host", "own"), [("10.0.0.3:7", True), ("[fe80::1]:7", True), ("evil.example:7", False)])
def test_where_it_listens_on_all_addresses_it_goes_by_any(host: str, own: bool) -> None:
    assert Hosts(7, any_address=True).allow(host) == own
