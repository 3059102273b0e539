"""Who may ask: this page, called by one of the server's own names. All others get a clean no.

A web page from elsewhere can make a browser send requests here, and can have its own name point here. The first is
told by `Origin` and `Sec-Fetch-Site`, the second by `Host`. Every answer, a no as well, carries headers by which a
browser neither runs, frames nor shares more than it must.
"""

import ipaddress
import logging
import re
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:(?P<port>[0-9]{1,5}))?")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HTTP_PORT = 80  # which a browser leaves out
_LONGEST = 8 * 1024  # bytes of an address
_MOST_HEADERS, _MOST_BYTES = 100, 32 * 1024


@dataclass(frozen=True)
class Hosts:
    """The names a server goes by: `Hosts(8765, frozenset({"my-machine"})).allow("my-machine:8765")`.

    A name of the machine itself may come with any port: `ssh -L` may have given it another.
    """

    port: int
    names: frozenset[str] = frozenset()  # besides those of the machine itself
    any_address: bool = False  # it listens on all; an address, unlike a name, cannot be another's

    def allow(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name, port = found["name"], int(found["port"] or _HTTP_PORT)
        known = name in self.names or (self.any_address and _is_address(name))
        return name in _LOOPBACK or (known and port == self.port)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def safety_headers(script_hash: str = "") -> dict[str, str]:
    """What every answer carries. The page holds one script of its own, the import map, named by its hash."""
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
            await failure(error)(scope, receive, send_safely)


def refusal(scope: Scope, hosts: Hosts) -> JSONResponse | None:
    """Why a request is not let in, as an answer."""
    headers = Headers(scope=scope)
    if len(scope["raw_path"]) + len(scope["query_string"]) > _LONGEST:
        return no("this address is too long", 414)
    if len(headers) > _MOST_HEADERS or sum(len(name) + len(one) for name, one in headers.raw) > _MOST_BYTES:
        return no("there are too many headers, or they are too long", 431)
    if len(headers.getlist("host")) != 1:
        return no("a request has to say which host it is for, once", 400)
    if not hosts.allow(headers["host"]):
        return no(f"this server does not go by that name; open http://127.0.0.1:{hosts.port}/", 421)
    return _foreign(scope, headers)


def _foreign(scope: Scope, headers: Headers) -> JSONResponse | None:
    """Why a request of another page is not let in."""
    own = f"{scope['scheme']}://{headers['host']}".lower()
    if any(origin.lower() != own for origin in headers.getlist("origin")):
        return no("only this server's own page may ask", 403)
    if headers.get("sec-fetch-site") == "cross-site" and not _is_a_link(scope, headers):
        return no("a page from elsewhere may not ask", 403)
    return None


def _is_a_link(scope: Scope, headers: Headers) -> bool:
    """Whether someone follows a link to the page, in a chat say: then they see it, and the other page does not."""
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return opened and scope["method"] == "GET" and scope["path"] == "/"


def no(reason: str, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers)


def failure(error: BaseException) -> JSONResponse:
    """Of a bug: the browser learns that there is one, the terminal which."""
    logging.getLogger(__name__).error("the viewer could not answer", exc_info=error)
    return no(f"something is wrong in the viewer itself ({type(error).__name__}); the terminal says more", 500)
