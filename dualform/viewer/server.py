"""The web server of one run: the page's files, and `/api/NAME` for its questions.

    app = make_app(Questions(exhibit), hosts=Hosts(8765))

Questions are answered elsewhere, in threads; here is what may be asked and how much of it at once. What comes in is
small, JSON and complete within seconds, or it is refused. See docs/viewer.md for the questions.
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
from dualform.viewer.guard import Guard, Hosts, failure, no, safety_headers
from dualform.viewer.page_files import File, Page, read_page

MOST_BYTES = 64 * 1024  # of a question
MOST_WAITING = 64  # questions
BODY_SECONDS = 10.0  # for a question to arrive
_WORTH_ZIPPING = 4096  # bytes
_QUICK = 4  # gzip's level: nearly as small as the best, in a third of the time


class Answering(Protocol):
    """Who answers questions."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def submit(self, name: str, body: object) -> Future[dict[str, Any]]:
        """The answer to come, or an error: `Refused` knows its status, others of ours are a 422, the rest bugs."""

    def close(self) -> None: ...


def make_app(questions: Answering, *, hosts: Hosts, page: Page | None = None) -> Starlette:
    """The application, for a server that goes by the names of `hosts`."""
    page = page or read_page()
    routes = [
        Route("/", _Shelf({"": page.index}).hand_out),
        Route("/page/{name:path}", _Shelf(page.files).hand_out),
        Route("/favicon.ico", _no_icon),
        Route("/api/{name}", _Desk(questions).ask, methods=["POST"]),
    ]
    middleware = [
        Middleware(Guard, hosts=hosts, headers=safety_headers(page.script_hash)),
        Middleware(GZipMiddleware, minimum_size=_WORTH_ZIPPING, compresslevel=_QUICK),
    ]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _as_json})
    app.router.redirect_slashes = False
    return app


async def _as_json(request: Request, error: Exception) -> Response:
    """What is said no to: a path or a method by routing, a body below."""
    assert isinstance(error, HTTPException)
    own = {"Not Found": "there is nothing here", "Method Not Allowed": f"{request.method} is not for this address"}
    return no(own.get(error.detail, error.detail), error.status_code, dict(error.headers or {}))


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)


class _Shelf:
    """Hands out files by their names."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files

    async def hand_out(self, request: Request) -> Response:
        file = self._files.get(request.path_params.get("name", ""))
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if file.etag in (one.strip() for one in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "Content-Type": file.type})


class _Desk:
    """Takes questions, as many as can wait, and gives the answers back."""

    def __init__(self, questions: Answering) -> None:
        self._questions, self._free = questions, BoundedSemaphore(MOST_WAITING)

    async def ask(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._questions.names:
            return no(str(UnknownName("question", printable(name[:40]), self._questions.names)), 404)
        try:
            future = self._submit(name, await _question(request))
            return _told(await _done(future, request))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it

    def _submit(self, name: str, body: object) -> Future[dict[str, Any]]:
        """A place is taken until the work is done, for it goes on when who asked has left."""
        if not self._free.acquire(blocking=False):
            raise HTTPException(503, "too many questions are waiting; try again in a moment", {"Retry-After": "1"})
        try:
            future = self._questions.submit(name, body)
        except BaseException:
            self._free.release()
            raise
        future.add_done_callback(lambda _: self._free.release())
        return future


async def _question(request: Request) -> dict[str, Any]:
    """What a request holds, if it is a question."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "a question is JSON: send it with Content-Type: application/json")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            content = await _content(request)
    except TimeoutError:
        reason = f"the question has not arrived within {BODY_SECONDS:g} s"
        raise HTTPException(408, reason, {"Connection": "close"}) from None
    return _json_object(content)


async def _content(request: Request) -> bytes:
    """The body, counted as it comes: not every request says beforehand how much it is."""
    too_much = HTTPException(413, f"a question may have {MOST_BYTES:,} bytes")
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        raise too_much
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MOST_BYTES:
            raise too_much
    return bytes(content)


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        found = parse(content.decode())
        json.dumps(found, allow_nan=False)  # raises for NaN and infinity, which Python reads though JSON has none
    except RecursionError:
        raise HTTPException(400, "this is not a question: it is nested too deep") from None
    except ValueError as error:
        raise HTTPException(400, f"this is not a question in JSON: {printable(str(error)[:200])}") from None
    if not isinstance(found, dict):
        raise HTTPException(400, 'a question is a JSON object, such as {"input": {"index": 0}}')
    return found


async def _done(future: Future[dict[str, Any]], request: Request) -> Future[dict[str, Any]]:
    """The same future when there is an answer; if who asked leaves before, work that has not begun is let be."""
    gone, done = asyncio.create_task(_gone(request)), asyncio.create_task(_wait_for(future))
    try:
        await asyncio.wait({gone, done}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        done.cancel()
    if not future.done():
        future.cancel()
        raise ClientDisconnect
    return future


async def _wait_for(future: Future[dict[str, Any]]) -> None:
    """Until it is done, however: asyncio's own way would wait for ever if it raised a StopIteration."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[dict[str, Any]]) -> None:
        with suppress(RuntimeError):  # the server has ended before the answer was there
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    await done.wait()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told(answer: Future[dict[str, Any]]) -> Response:
    """An answer, or why there is none, for the page."""
    if answer.cancelled():
        return no("the viewer is being closed", 503)
    error = answer.exception()
    if isinstance(error, Refused):
        later = {"Retry-After": "1"} if error.status == 503 else None  # something is still being prepared
        return JSONResponse({"error": str(error), "job": error.job}, error.status, later)
    if isinstance(error, DualformError):
        return no(str(error), 422)
    if error is not None:
        return failure(error)
    text = json.dumps(finite(answer.result()), allow_nan=False, separators=(",", ":"))
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})
