"""A mirror on this machine, with every way to fail that mirrors have."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket


class Mirror:
    """`files` are served whole, `cut` ones are announced longer than they are, `slow` ones never begin."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.cut: dict[str, bytes] = {}
        self.slow: set[str] = set()
        self.dropped: set[str] = set()
        self.asked: list[str] = []
        self.over = threading.Event()

    def url(self, name: str) -> str:
        return f"{self.address}{name}"


class _Handler(BaseHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        name, mirror = self.path.lstrip("/"), self.mirror
        mirror.asked.append(name)
        if name in mirror.slow:
            mirror.over.wait(10)
        elif name in mirror.files:
            self._send(mirror.files[name], len(mirror.files[name]))
        elif name in mirror.cut:
            self._send(mirror.cut[name], len(mirror.cut[name]) + 100)
        elif name not in mirror.dropped:
            self.send_error(404)

    def _send(self, body: bytes, announced: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(announced))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: a server logs to the standard error."""


@contextmanager
def running() -> Iterator[Mirror]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        mirror = Mirror(f"http://127.0.0.1:{server.server_port}/")
        server.RequestHandlerClass = type("Handler", (_Handler,), {"mirror": mirror})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            mirror.over.set()
            server.shutdown()
            thread.join()


def closed() -> str:
    """The address of a mirror that nobody runs."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"
