"""Requests no page of ours sends: each gets a clean no, and the server goes on."""

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dualform.viewer.server import MAX_BODY_BYTES
from tests.viewer.served import Reply, StubHandler, ask, connected, post, raw, reply, request, served

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(StubHandler()) as found:
        yield found
        assert post(found, "echo", {"still": "there"}).json() == {"still": "there"}


@pytest.mark.parametrize(
    "path",
    [
        "/page/../../etc/passwd",
        "/page/core/../../server.py",
        "/page/core%2f..%2f..%2fserver.py",
        "/page/core//state.js",
        "/page/core",
        "/page/core/",
        "/page/../server.py",
        "/../../../etc/passwd",
        "//etc/passwd",
        "/page//etc/passwd",
        "/page/..%2f..%2fserver.py",
        "/page/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/page/%2e%2e/server.py",
        "/page/%252e%252e%252fserver.py",
        "/page/..%5c..%5cserver.py",
        "/page/..\\server.py",
        "/page/main.js%00.css",
        "/page/%00",
        "/page/main.js%20",
        "/page/%ff%fe",
        "/page/index.html",
        "/page/.",
        "/page/..",
        "/page/__init__.py",
        "/api",
        "/api/",
        "http://elsewhere.example/",
        "*",
    ],
)
def test_there_is_no_way_to_other_files(port: int, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = raw(port, request.encode())
    assert (found.status, found.error()) == (404, "there is nothing here")


@pytest.mark.parametrize("path", ["/page/main\x00.js", "/page/a b", "/page/\x7f", "/page/\n", "/ü"])
def test_an_address_of_other_signs_is_no_http(port: int, path: str) -> None:
    found = raw(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert (found.status, found.error()) == (400, "Invalid HTTP request received.")


@pytest.mark.parametrize(
    "host",
    [
        *("elsewhere.example", "elsewhere.example:{}", "127.0.0.1.elsewhere.example:{}", "user@localhost:{}", ""),
        *("localhost.:{}", "localhost:{}:1", "localhost:x", "localhost, evil", "[::1", "[::]:{}", "0.0.0.0:{}"),
        *("127.1:{}", "2130706433:{}"),
    ],
)
def test_a_foreign_host(port: int, host: str) -> None:
    for method, path in (("GET", "/"), ("GET", "/page/main.js"), ("POST", "/api/echo")):
        found = ask(port, method, path, b"{}" if method == "POST" else None, {**JSON, "Host": host.format(port)})
        assert (found.status, "does not go by that name" in found.error()) == (421, True)


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "localhost:9000", "LOCALHOST", "[::1]:9000"])
def test_a_host_of_ones_own(port: int, host: str) -> None:
    assert ask(port, "GET", "/", headers={"Host": host.format(port)}).status == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_no_host(port: int, version: str) -> None:
    found = raw(port, f"GET / HTTP/{version}\r\n\r\n".encode())
    assert (found.status, bool(found.error())) == (400, True)


def test_two_hosts(port: int) -> None:
    assert raw(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere.example\r\n\r\n").status == 400


@pytest.mark.parametrize(
    "origin",
    [
        *("http://elsewhere.example", "http://localhost:9000.elsewhere.example", "http://127.0.0.1:9000", "null", ""),
        *("https://localhost:9000", "http://localhost", "http://localhost:9001", "http://localhost:9000/"),
        "localhost:9000",
    ],
)
def test_a_foreign_origin(port: int, origin: str) -> None:
    found = ask(port, "POST", "/api/echo", b"{}", {**JSON, "Host": "localhost:9000", "Origin": origin})
    assert (found.status, found.error()) == (403, "only this server's own page may ask")


def test_an_origin_of_ones_own(port: int) -> None:
    own = {"Host": "localhost:9000", "Origin": "http://localhost:9000", "Sec-Fetch-Site": "same-origin"}
    assert ask(port, "POST", "/api/echo", b"{}", {**JSON, **own}).status == 200


def test_two_origins(port: int) -> None:
    own = f"Origin: http://localhost:{port}\r\nOrigin: http://elsewhere.example\r\n"
    assert raw(port, f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\n{own}\r\n".encode()).status == 403


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("POST", "/api/echo", {}),
        ("GET", "/", {}),
        ("GET", "/page/main.js", {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
        ("GET", "/page/main.js", {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
        ("GET", "/", {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
        ("POST", "/", {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
    ],
)
def test_a_page_from_elsewhere(port: int, method: str, path: str, more: dict[str, str]) -> None:
    found = ask(port, method, path, b"{}" if method == "POST" else None, {"Sec-Fetch-Site": "cross-site", **more})
    assert (found.status, found.error()) == (403, "a page from elsewhere may not ask")


def test_a_link_from_elsewhere_opens_the_page(port: int) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert ask(port, "GET", "/", headers=link).status == 200


def too_much(found: Reply) -> bool:
    return (found.status, found.error()) == (413, f"a request may have {MAX_BODY_BYTES:,} bytes")


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 5_000_000])
def test_a_huge_body(port: int, size: int) -> None:
    assert too_much(ask(port, "POST", "/api/echo", b" " * size, JSON))


@pytest.mark.parametrize("length", ["100000", "99999999999999"])
def test_a_body_that_is_said_to_be_huge_is_not_waited_for(port: int, length: str) -> None:
    assert too_much(raw(port, request("echo", f"Content-Length: {length}\r\nExpect: 100-continue")))


@pytest.mark.parametrize("chunk", [1000, 100_000])
def test_a_huge_body_of_unknown_length(port: int, chunk: int) -> None:
    """The answer comes although the body never ends, and the connection is of use when it does."""
    with connected(port) as client:
        client.sendall(request("echo", "Transfer-Encoding: chunked"))
        for _ in range(200_000 // chunk):
            client.sendall(f"{chunk:x}\r\n".encode() + b" " * chunk + b"\r\n")
        assert too_much(reply(client))
        client.sendall(b"0\r\n\r\n" + request("echo", "Content-Length: 2", b"{}"))
        assert reply(client).status == 200


@pytest.mark.parametrize(
    "length",
    [
        *("Content-Length: -1", "Content-Length: x", "Content-Length: 2\r\nContent-Length: 3", "Content-Length: 2, 3"),
        *("Content-Length: " + "9" * 30, "Transfer-Encoding: gzip", "Bad Header: 1", "Header: \x00"),
    ],
)
def test_headers_that_say_nothing(port: int, length: str) -> None:
    found = raw(port, request("echo", length, b"{}"))
    assert found.status in (400, 501)
    assert found.error()


def test_chunks_that_are_none(port: int) -> None:
    assert raw(port, request("echo", "Transfer-Encoding: chunked", b"zz\r\n{}\r\n0\r\n\r\n")).status == 400


def test_nonsense_after_the_answer(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with connected(port) as client:
        client.sendall(request("unknown", "Transfer-Encoding: chunked"))
        assert reply(client).status == 404
        client.sendall(b"zz\r\n")
        assert client.recv(1) == b""
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "not a request in JSON"),
        (b"{'a': 1}", "not a request in JSON"),
        (b'{"a": 1,}', "not a request in JSON"),
        (b'{"a": 1} {"b": 2}', "Extra data"),
        (b'{"a": "\n"}', "control character"),
        (b"\xff\xfe{\x00}\x00", "decode"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"b": {"a": 1, "a": 2}}', "'a' is there twice"),
        (b'{"a": NaN}', "not JSON compliant"),
        (b'{"a": [-Infinity]}', "not JSON compliant"),
        (b'{"a": 1e999}', "not JSON compliant"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "nested"),
        (b"[" * 60_000, "nested"),
        (b'{"a":' * 12_000, "nested"),
        (b"[]", "a request is a JSON object"),
        (b"null", "a request is a JSON object"),
        (b"3", "a request is a JSON object"),
        (b'"text"', "a request is a JSON object"),
        (b"true", "a request is a JSON object"),
    ],
)
def test_a_body_that_is_no_request(port: int, body: bytes, reason: str) -> None:
    found = ask(port, "POST", "/api/echo", body, JSON)
    assert (found.status, reason in found.error()) == (400, True), found.error()


def test_a_reason_is_short_whatever_is_sent(port: int) -> None:
    name = json.dumps("\x1b[31m" + "x" * 20_000)
    reason = ask(port, "POST", "/api/echo", f"{{{name}: 1, {name}: 2}}".encode(), JSON).error()
    assert len(reason) < 300
    assert reason.isprintable()


@pytest.mark.parametrize("name", ["unknown", "RUN", "run%20", "__class__", "%1b%5b31m", "x" * 5000, "..", "submit"])
def test_an_unknown_request(port: int, name: str) -> None:
    found = ask(port, "POST", f"/api/{name}", b"{}", JSON)
    assert found.status == 404
    assert found.error().endswith("choose from " + ", ".join(map(repr, StubHandler.names)))
    assert len(found.error()) < 300


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/run", {"POST"}),
        ("HEAD", "/api/run", {"POST"}),
        ("PUT", "/api/run", {"POST"}),
        ("OPTIONS", "/api/run", {"POST"}),
        ("POST", "/", {"GET", "HEAD"}),
        ("DELETE", "/page/main.js", {"GET", "HEAD"}),
        ("TRACE", "/", {"GET", "HEAD"}),
        ("BREW", "/favicon.ico", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method(port: int, method: str, path: str, allowed: set[str]) -> None:
    found = ask(port, method, path)
    assert found.status == 405
    assert set(found.headers["allow"].split(", ")) == allowed
    assert method == "HEAD" or found.error() == f"{method} is not for this address"


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_wrong_type(port: int, kind: str | None) -> None:
    found = ask(port, "POST", "/api/echo", b"{}", {} if kind is None else {"Content-Type": kind})
    assert (found.status, "application/json" in found.error()) == (415, True)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: localhost", 414),
        (b"GET /?" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: localhost", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n".join(b"X-%d: 1" % one for one in range(200)), 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"x" * 40_000, 431),
    ],
    ids=["address", "search", "headers", "header"],
)
def test_a_head_that_is_too_long(port: int, head: bytes, status: int) -> None:
    found = raw(port, head + b"\r\n\r\n")
    assert (found.status, "too" in found.error()) == (status, True)


@pytest.mark.parametrize("head", [b"GET /" + b"x" * 1_000_000, b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 100_000])
def test_a_head_without_an_end(port: int, head: bytes) -> None:
    with connected(port) as client:
        with suppress(ConnectionError):
            client.sendall(head)
        with suppress(ConnectionError):  # it may be cut before the answer is read
            assert reply(client).status == 400


@pytest.mark.parametrize(
    "request_line",
    [b"nonsense", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /", b"GET / HTTP/x"],
    ids=["words", "tls", "old", "version"],
)
def test_what_is_no_request(port: int, request_line: bytes) -> None:
    found = raw(port, request_line + b"\r\n\r\n")
    assert (found.status, found.headers["connection"]) == (400, "close")
    assert found.error() == "Invalid HTTP request received."


def test_a_web_socket(port: int) -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YWJj\r\n"
    found = raw(port, f"GET /api/run HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n".encode())
    assert found.status == 405


def test_forwarded_names_are_not_believed(port: int) -> None:
    forged = {"X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "https", "Forwarded": "host=localhost"}
    assert ask(port, "GET", "/", headers={"Host": "elsewhere.example", **forged}).status == 421
    assert ask(port, "GET", "/", headers=forged).status == 200
