"""The web server of one run: the page's files, and `/api/NAME` for its requests.

    app = make_app(Api(run), hosts=Hosts(8765))

Requests are answered elsewhere, in threads; here is what may be sent and how much of it at once. What comes in is
small, JSON and complete within seconds, or it is refused. See docs/internals/viewer.md for the requests.
"""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import BoundedSemaphore
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dualform.errors import DualformError, Refused, UnknownName
from dualform.strict_json import finite, parse, printable
from dualform.viewer.guard import Guard, Hosts, error_response, internal_error, safety_headers
from dualform.viewer.page_files import File, Page, read_page

MAX_BODY_BYTES = 64 * 1024
MAX_PENDING_REQUESTS = 64
BODY_SECONDS = 10.0  # for a body to arrive
_MIN_GZIP_BYTES = 4096
_GZIP_LEVEL = 4  # nearly as small as the best, in a third of the time

Answer = Future[dict[str, Any]]


class RequestHandler(Protocol):
    """Answers requests by name."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def submit(self, name: str, body: object) -> Answer:
        """Return the answer to come. As errors, `Refused` knows its status, others of ours are a 422, the rest bugs."""

    def close(self) -> None: ...


def make_app(handler: RequestHandler, *, hosts: Hosts, page: Page | None = None) -> Starlette:
    """Make the application, for a server that goes by the names of `hosts`."""
    page = page or read_page()
    routes = [
        Route("/", _FileEndpoint({"": page.index}).send),
        Route("/page/{name:path}", _FileEndpoint(page.files).send),
        Route("/favicon.ico", _no_icon),
        Route("/api/{name}", _ApiEndpoint(handler).answer, methods=["POST"]),
    ]
    middleware = [
        Middleware(Guard, hosts=hosts, headers=safety_headers(page.script_hash)),
        Middleware(GZipMiddleware, minimum_size=_MIN_GZIP_BYTES, compresslevel=_GZIP_LEVEL),
    ]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _error_as_json})
    app.router.redirect_slashes = False
    return app


async def _error_as_json(request: Request, error: Exception) -> Response:
    """Answer an error of routing, about a path or a method, or one that is raised below, about a body."""
    assert isinstance(error, HTTPException)
    own = {"Not Found": "there is nothing here", "Method Not Allowed": f"{request.method} is not for this address"}
    return error_response(own.get(error.detail, error.detail), error.status_code, dict(error.headers or {}))


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)


class _FileEndpoint:
    """Sends files by their names."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files

    async def send(self, request: Request) -> Response:
        file = self._files.get(request.path_params.get("name", ""))
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if file.etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "Content-Type": file.type})


class _ApiEndpoint:
    """Takes requests, as many as may be pending, and sends the answers."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler, self._free = handler, BoundedSemaphore(MAX_PENDING_REQUESTS)

    async def answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._handler.names:
            return error_response(str(UnknownName("request", printable(name[:40]), self._handler.names)), 404)
        try:
            answer = self._submit(name, await _read_body(request))
            await _wait_for_answer(answer, request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        if answer.cancelled():
            return error_response("the viewer is being closed", 503)
        error = answer.exception()
        if isinstance(error, Refused):
            headers = {"Retry-After": "1"} if error.status == 503 else None  # something is still being prepared
            return JSONResponse({"error": str(error), "job": error.job}, error.status, headers)
        if isinstance(error, DualformError):
            return error_response(str(error), 422)
        if error is not None:
            return internal_error(error)
        text = json.dumps(finite(answer.result()), allow_nan=False, separators=(",", ":"))
        return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})

    def _submit(self, name: str, body: object) -> Answer:
        """Hand a request on. It counts as pending until its work is done, which goes on when the client has left."""
        if not self._free.acquire(blocking=False):
            raise HTTPException(503, "too many requests are pending; try again in a moment", {"Retry-After": "1"})
        try:
            answer = self._handler.submit(name, body)
        except BaseException:
            self._free.release()
            raise
        answer.add_done_callback(lambda _: self._free.release())
        return answer


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request holds."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "a request is JSON: send it with Content-Type: application/json")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            content = await _read_bytes(request)
    except TimeoutError:
        reason = f"the request has not arrived within {BODY_SECONDS:g} s"
        raise HTTPException(408, reason, {"Connection": "close"}) from None
    try:
        body = parse(content.decode())
        json.dumps(body, allow_nan=False)  # raises for NaN and infinity, which Python reads though JSON has none
    except RecursionError:
        raise HTTPException(400, "this is not a request: it is nested too deep") from None
    except ValueError as error:
        raise HTTPException(400, f"this is not a request in JSON: {printable(str(error)[:200])}") from None
    if not isinstance(body, dict):
        raise HTTPException(400, 'a request is a JSON object, such as {"input": {"index": 0}}')
    return body


async def _read_bytes(request: Request) -> bytes:
    """Return the body, counted as it comes: not every request says beforehand how long it is."""
    too_long = HTTPException(413, f"a request may have {MAX_BODY_BYTES:,} bytes")
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        raise too_long
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise too_long
    return bytes(content)


async def _wait_for_answer(answer: Answer, request: Request) -> None:
    """Wait until there is an answer; if the client leaves before, cancel work that has not begun, and raise."""
    tasks = {asyncio.create_task(_wait_for_disconnect(request)), asyncio.create_task(_wait_until_done(answer))}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if not answer.done():
        answer.cancel()
        raise ClientDisconnect


async def _wait_until_done(answer: Answer) -> None:
    """Wait for an answer or an error: asyncio's own way would wait for ever if it were a StopIteration."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Answer) -> None:
        with suppress(RuntimeError):  # the server has ended before the answer was there
            loop.call_soon_threadsafe(done.set)

    answer.add_done_callback(wake)
    await done.wait()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
