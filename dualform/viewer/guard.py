"""Who may ask: this page, called by one of the server's own names. All others are refused.

A web page from elsewhere can make a browser send requests here, and can have its own name point here. The first is
known by `Origin` and `Sec-Fetch-Site`, the second by `Host`. Every answer, a refusal as well, carries headers by which
a browser neither runs, frames nor shares more than it must.
"""

import ipaddress
import logging
import re
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:(?P<port>[0-9]{1,5}))?")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HTTP_PORT = 80  # which a browser leaves out
_MAX_ADDRESS_BYTES = 8 * 1024
_MAX_HEADERS, _MAX_HEADER_BYTES = 100, 32 * 1024


@dataclass(frozen=True)
class Hosts:
    """The names a server goes by: `Hosts(8765, frozenset({"my-machine"})).allow("my-machine:8765")`.

    A name of the machine itself may come with any port: `ssh -L` may have given it another.
    """

    port: int
    names: frozenset[str] = frozenset()  # besides those of the machine itself
    any_address: bool = False  # it listens on all; an address, unlike a name, cannot be another's

    def allow(self, host: str) -> bool:
        """Return whether this is one of the server's own names."""
        parts = _HOST.fullmatch(host.lower())
        if parts is None:
            return False
        name, port = parts["name"], int(parts["port"] or _HTTP_PORT)
        known = name in self.names
        if self.any_address:
            with suppress(ValueError):  # which says that it is a name, and no address
                known = bool(ipaddress.ip_address(name.strip("[]")))
        return name in _LOOPBACK or (known and port == self.port)


def safety_headers(script_hash: str = "") -> dict[str, str]:
    """Return what every answer carries. The page holds one script of its own, the import map, named by its hash."""
    scripts = f"'self' '{script_hash}'" if script_hash else "'self'"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Frame-Options": "DENY",
    }


class Guard:
    """Stands before the whole application, and answers for it if it breaks."""

    def __init__(self, app: ASGIApp, hosts: Hosts, headers: dict[str, str]) -> None:
        self._app, self._hosts, self._headers = app, hosts, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # uvicorn is told to offer nothing else
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        app = refusal(scope, self._hosts) or self._app
        try:
            await app(scope, receive, send_safely)
        except Exception as error:
            if started:
                raise
            await internal_error(error)(scope, receive, send_safely)


def refusal(scope: Scope, hosts: Hosts) -> JSONResponse | None:
    """Return why a request is not let in, as an answer; None if it is."""
    headers = Headers(scope=scope)
    if len(scope["raw_path"]) + len(scope["query_string"]) > _MAX_ADDRESS_BYTES:
        return error_response("this address is too long", 414)
    if len(headers) > _MAX_HEADERS or sum(len(name) + len(value) for name, value in headers.raw) > _MAX_HEADER_BYTES:
        return error_response("there are too many headers, or they are too long", 431)
    if len(headers.getlist("host")) != 1:
        return error_response("a request has to say which host it is for, once", 400)
    if not hosts.allow(headers["host"]):
        return error_response(f"this server does not go by that name; open http://127.0.0.1:{hosts.port}/", 421)
    own = f"{scope['scheme']}://{headers['host']}".lower()
    if any(origin.lower() != own for origin in headers.getlist("origin")):
        return error_response("only this server's own page may ask", 403)
    # Someone may follow a link to the page, in a chat say: then they see it, and the page with the link does not.
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    is_link = opened and scope["method"] == "GET" and scope["path"] == "/"
    if headers.get("sec-fetch-site") == "cross-site" and not is_link:
        return error_response("a page from elsewhere may not ask", 403)
    return None


def error_response(reason: str, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers)


def internal_error(error: BaseException) -> JSONResponse:
    """Answer after a bug: the browser learns that there is one, the terminal which."""
    logging.getLogger(__name__).error("the viewer could not answer", exc_info=error)
    reason = f"something is wrong in the viewer itself ({type(error).__name__}); the terminal says more"
    return error_response(reason, 500)
