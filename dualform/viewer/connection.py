"""A connection that ends when the other side takes too long, and that is as careful before a request as after it.

uvicorn waits for ever for a request that has begun, and for a reader that does not read; the deadlines are here.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dualform.viewer.guard import safety_headers

REQUEST_SECONDS = 20.0  # from the first byte of a request to its last; more than an application may wait for its body
READING_SECONDS = 30.0  # for an answer to be taken in part


class Connection(H11Protocol):
    """uvicorn's own, with deadlines."""

    _request_deadline: asyncio.TimerHandle | None = None
    _reading_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._request_deadline = self._abort_after(REQUEST_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # part of a request may still be to come: of its head, or of its body, though it be answered already
        state = self.conn.their_state
        incomplete = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        if not incomplete:
            self._cancel_request_deadline()
        elif self._request_deadline is None:
            self._request_deadline = self._abort_after(REQUEST_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_deadline = self._abort_after(READING_SECONDS)

    def resume_writing(self) -> None:
        self._cancel_reading_deadline()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_deadline()
        self._cancel_reading_deadline()
        super().connection_lost(exc)

    def _abort_after(self, seconds: float) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.transport.abort)

    def _cancel_request_deadline(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _cancel_reading_deadline(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or too much of it, like every other refusal; no application has seen it."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # it has been answered, and the nonsense is the rest of it
            return
        body = json.dumps({"error": msg}).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        events: list[Any] = [
            h11.Response(status_code=400, headers=list({**headers, **safety_headers()}.items()), reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
