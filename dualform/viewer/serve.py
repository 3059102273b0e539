"""`serve`: the server at a port, a browser before it, until Ctrl-C.

with open_port("127.0.0.1", None) as port:
    serve(Path("runs/demo"), Api(run), port)
"""

import asyncio
import getpass
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from dualform import terminal
from dualform.viewer.connection import Connection
from dualform.viewer.port import Port, in_url
from dualform.viewer.server import RequestHandler, make_app

_GRACE_SECONDS = 0.3  # for answers under way, once it is to end
_MAX_HEAD_BYTES = 32 * 1024  # of a request that has not come to its end: its address and its headers
_KEEP_ALIVE_SECONDS = 30


def serve(path: Path, handler: RequestHandler, port: Port, browser: bool = True) -> None:
    """Answer the page's requests until Ctrl-C or SIGTERM.

    Args:
        path: The run's directory, for what is printed.
        handler: Answers the requests; it is closed in the end.
        port: Where to listen.
        browser: Whether to open a browser, if there is a screen.
    """
    try:
        app = make_app(handler, hosts=port.hosts)
        for line in announcement(path, port):
            terminal.console().print(line, soft_wrap=True)
        if browser and has_screen():
            threading.Thread(target=webbrowser.open, args=[port.url], daemon=True).start()
        with suppress(KeyboardInterrupt):  # while it starts
            Server(app).run([port.socket])
    finally:
        handler.close()


def announcement(path: Path, port: Port) -> list[str]:
    """Return what stands in the terminal while it runs."""
    lines = [f"{path} is at {port.url}"]
    if port.is_private:
        user = "USER"
        with suppress(KeyError, OSError):  # a container may run as nobody in particular
            user = getpass.getuser()
        way = f"ssh -L {port.number}:{in_url(port.address)}:{port.number} {user}@{socket.gethostname()}"
        lines.append(f"from another machine: {way}, then the same address there")
    else:
        lines.append("warning: anyone who can reach this machine can look at the run")
    return [*lines, "Ctrl-C ends it"]


def has_screen() -> bool:
    """Return whether a browser has a screen to open on."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class Server(uvicorn.Server):
    """uvicorn's, silent, and quick to end: answers under way have a moment, then all connections are dropped."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app, http=Connection, ws="none", loop="asyncio", lifespan="off", proxy_headers=False, server_header=False,
            log_config=None, log_level="warning", access_log=False, h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=2,
        )  # fmt: skip
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._drop_connections)
        await super().shutdown(sockets)

    def _drop_connections(self) -> None:
        """Abort connections: whoever waits for an answer sees that nobody is there to read it, and ends by itself."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but raise none a second time: it has been obeyed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
