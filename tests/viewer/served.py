"""A real server on this machine, a few requests it answers, and ways of asking it that no browser has.

    with served(StubHandler()) as port:
        assert post(port, "echo", {"a": 1}).json() == {"a": 1}

As a program it serves until it is told to end: python -m tests.viewer.served
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from dualform.errors import QueryError, Refused
from dualform.viewer.page_files import Page
from dualform.viewer.port import open_port
from dualform.viewer.serve import Server, serve
from dualform.viewer.server import RequestHandler, make_app


class StubHandler:
    """Api that are answered, refused, held up, or that break."""

    names = ("run", "echo", "odd", "large", "wrong", "prepare", "break", "stop", "shapeless", "hold")

    def __init__(self, workers: int = 2) -> None:
        self.futures: list[Future[dict[str, Any]]] = []
        self.gate = threading.Event()
        self.closed = False
        self._pool = ThreadPoolExecutor(workers)

    def submit(self, name: str, body: object) -> Future[dict[str, Any]]:
        self.futures.append(self._pool.submit(self._answer, name, body))
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True
        self.gate.set()
        self._pool.shutdown(cancel_futures=True)

    def _answer(self, name: str, body: object) -> Any:
        if name == "hold":
            self.gate.wait()
        if name == "wrong":
            raise QueryError("there is no input 7")
        if name == "prepare":
            raise Refused("the first requests are being prepared", 503, "spotlight")
        if name == "break":
            raise ZeroDivisionError("a secret of the program")
        if name == "stop":
            raise StopIteration  # which cannot be raised in a coroutine
        odd = {"scores": [float("nan"), float("inf"), 1.5], "text": "\ud800 ü"}
        answers = {"odd": odd, "large": {"numbers": list(range(20_000))}, "shapeless": {"what": object()}}
        return answers.get(name, body)


@contextmanager
def served(handler: RequestHandler, page: Page | None = None) -> Iterator[int]:
    """The port of a server in a thread."""
    port = open_port("127.0.0.1", 0)
    server = Server(make_app(handler, hosts=port.hosts, page=page))
    thread = threading.Thread(target=server.run, args=[[port.socket]])
    number = port.number
    thread.start()
    try:
        yield number
    finally:
        server.should_exit = True
        thread.join()
        handler.close()


@dataclass(frozen=True)
class Reply:
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @classmethod
    def of(cls, response: HTTPResponse) -> "Reply":
        return cls(response.status, {name.lower(): one for name, one in response.getheaders()}, response.read())

    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    def error(self) -> str:
        reason = self.json()["error"]
        assert isinstance(reason, str)
        return reason


def ask(port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        return Reply.of(connection.getresponse())
    finally:
        connection.close()


def post(port: int, name: str, body: object) -> Reply:
    return ask(port, "POST", f"/api/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"})


def raw(port: int, request: bytes) -> Reply:
    """The answer to bytes that need not be HTTP."""
    with connected(port) as client:
        client.sendall(request)
        return reply(client)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def reply(client: socket.socket) -> Reply:
    response = HTTPResponse(client)
    response.begin()
    return Reply.of(response)


def request(name: str, length: str, body: bytes = b"") -> bytes:
    """A request by hand; `length` is the header that says how long it is."""
    head = f"POST /api/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
    return head.encode() + body


def soon(condition: Any) -> None:
    """Waits until something is so."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


if __name__ == "__main__":
    serve(Path("runs/few"), StubHandler(), open_port("127.0.0.1", None), browser=False)
