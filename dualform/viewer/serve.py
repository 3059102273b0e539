"""`serve`: the server at a port, a browser before it, until Ctrl-C.

with open_port("127.0.0.1", None) as port:
    serve(Path("runs/demo"), questions, port)
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
from dualform.viewer.server import Answering, make_app

_GRACE = 0.3  # seconds for answers under way, once it is to end
_HEAD_BYTES = 32 * 1024  # of a request that has not come to its end: its address and its headers
_KEEP_ALIVE = 30  # seconds


def serve(run: Path, questions: Answering, port: Port, browser: bool = True) -> None:
    """Answer the page's questions until Ctrl-C or SIGTERM; then the questions are closed."""
    try:
        app = make_app(questions, hosts=port.hosts)
        for line in told(run, port):
            terminal.console().print(line, soft_wrap=True)
        if browser and somebody_could_see_it():
            threading.Thread(target=webbrowser.open, args=[port.url], daemon=True).start()
        with suppress(KeyboardInterrupt):  # while it starts
            Server(app).run([port.socket])
    finally:
        questions.close()


def told(run: Path, port: Port) -> list[str]:
    """What stands in the terminal while it runs."""
    lines = [f"{run} is at {port.url}"]
    if port.is_private:
        way = f"ssh -L {port.number}:{in_url(port.address)}:{port.number} {_user()}@{socket.gethostname()}"
        lines.append(f"from another machine: {way}, then the same address there")
    else:
        lines.append("warning: anyone who can reach this machine can look at the run")
    return [*lines, "Ctrl-C ends it"]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as nobody in particular
        return "USER"


def somebody_could_see_it() -> bool:
    """Whether a browser has a screen to open on."""
    return sys.platform != "linux" or any(os.environ.get(one) for one in ("DISPLAY", "WAYLAND_DISPLAY"))


class Server(uvicorn.Server):
    """uvicorn's, silent, and quick to end: answers under way have a moment, then all connections are dropped."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app, http=Connection, ws="none", loop="asyncio", lifespan="off", proxy_headers=False, server_header=False,
            log_config=None, log_level="warning", access_log=False, h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_keep_alive=_KEEP_ALIVE, timeout_graceful_shutdown=2,
        )  # fmt: skip
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(_GRACE, self._drop)
        await super().shutdown(sockets)

    def _drop(self) -> None:
        """Whoever waits for an answer sees that nobody is there to read it, and ends by itself."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's own, but a signal is not raised a second time: it has been obeyed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
