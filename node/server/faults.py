"""Faults of the HTTP side, for tests and dry runs with the scripted engine.

A raw ASGI layer around `/v1` and `/api`: it delays, refuses, cuts off, stalls and garbles responses
as real servers do, and records what it received and sent. `GET /scripted` shows switches and
records, `PUT /scripted` replaces the switches, `DELETE /scripted/records` drops the records; all
three need the agent's token. What the engine itself does is in its script and is fixed while the
agent runs.
"""

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.errors import NodeError
from node.protocol.event_stream import event
from node.protocol.headers import HEADER_REQUEST_ID
from node.protocol.paths import OLLAMA_PREFIX, VERSION_PREFIX
from node.server.call import error_body
from node.settings import Settings

CONTROL_PATH = "/scripted"
RECORDS_PATH = "/scripted/records"
KEPT_RECORDS = 10_000
MAX_CONTROL_BYTES = 64 * 1024
MALFORMED_LINE = event(b'{"broken": ')

_CODES = {429: "rate_limit_exceeded", 409: "model_busy"}


class Switches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults of responses under `/v1` and `/api`; None turns a fault off."""

    headers_delay_s: float = 0.0
    """Seconds until the request reaches the agent."""
    fail_status: int | None = None
    retry_after_s: int | None = None
    fail_times: int = -1
    """Number of requests that fail before the node recovers; -1 for all."""
    close_after_chunks: int | None = None
    """After this number of chunks, the connection is closed instead of sending the next one."""
    stall_after_chunks: int | None = None
    malformed_after_chunks: int | None = None
    """In a stream, after this number of chunks, one line that is not JSON is sent before the next
    one."""


@dataclass(slots=True)
class _Record:
    request_id: str
    method: str
    path: str
    headers: list[tuple[str, str]]
    framing: str
    """Framing of the body: content-length, chunked or none."""
    arrived_monotonic_s: float
    body_bytes: int = 0
    status: int | None = None
    response_bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    client_left_monotonic_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        fields = (
            "request_id method path headers framing arrived_monotonic_s body_bytes status "
            "response_bytes client_left_monotonic_s"
        )
        shown = {name: getattr(self, name) for name in fields.split()}
        return shown | {"response_sha256": self.digest.hexdigest()}


def wrap(app: ASGIApp, settings: Settings) -> ASGIApp:
    """Wraps `app` with the faults and the routes that control them."""
    return _Faults(app, settings)


class _ConnectionDropped(OSError):
    """Raised from the agent's own writes after a fault has closed the connection."""


class _Faults:
    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._switches = Switches()
        self._failures_left = -1
        self._records: deque[_Record] = deque(maxlen=KEPT_RECORDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path in (CONTROL_PATH, RECORDS_PATH):
            await self._control(scope, receive, send)
        elif scope["type"] == "http" and path.startswith((VERSION_PREFIX, OLLAMA_PREFIX)):
            await self._serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = _begin(scope)
        self._records.append(record)
        call = _FaultyExchange(record, self._switches, receive, send)
        pump = asyncio.create_task(call.pump())
        try:
            await call.wait(self._switches.headers_delay_s)
            if self._fails():
                await self._refuse(call, record.path)
            else:
                # The client may have disconnected; the agent still gets the request and the
                # disconnect.
                with contextlib.suppress(_ConnectionDropped):
                    await self._app(scope, call.receive, call.send)
        finally:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump

    def _fails(self) -> bool:
        if self._switches.fail_status is None or self._failures_left == 0:
            return False
        self._failures_left -= self._failures_left > 0
        return True

    async def _refuse(self, call: "_FaultyExchange", path: str) -> None:
        error = NodeError("The script requests this failure.")
        status = self._switches.fail_status or 500
        error.set_status(status, _CODES.get(status, "scripted_failure"))
        body = msgspec.Raw(error_body(path, error))
        headers = []
        if self._switches.retry_after_s is not None:
            headers.append((b"retry-after", str(self._switches.retry_after_s).encode()))
        await call.body_read.wait()
        with contextlib.suppress(_ConnectionDropped):
            await _respond(call.send, status, body, headers)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_allowed(scope):
            await _respond(send, 401, {"message": "The token is missing or wrong."})
            return
        match scope["method"], scope["path"]:
            case "GET", "/scripted":
                await _respond(send, 200, self._shown())
            case "PUT", "/scripted":
                status, response = self._replace(await _body(receive))
                await _respond(send, status, response)
            case "DELETE", "/scripted/records":
                self._records.clear()
                await _respond(send, 200, self._shown())
            case _:
                await _respond(send, 405, {"message": "This path accepts another method."})

    def _is_allowed(self, scope: Scope) -> bool:
        try:
            token = self._settings.token_file.read_bytes().strip()
        except OSError:
            return False
        given = dict(scope["headers"]).get(b"authorization", b"")
        return bool(token) and hmac.compare_digest(given, b"Bearer " + token)

    def _shown(self) -> dict[str, Any]:
        return {
            "switches": msgspec.to_builtins(self._switches),
            "failures_left": self._failures_left,
            "records": [record.as_json() for record in self._records],
        }

    def _replace(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            switches = msgspec.json.decode(body, type=Switches)
        except msgspec.MsgspecError as error:
            message = f"{error}. What the engine does is in the script of the agent's start."
            return 400, {"message": message}
        if switches.fail_status is not None and not 400 <= switches.fail_status <= 599:
            return 400, {"message": "fail_status must be a status from 400 to 599."}
        self._switches = switches
        self._failures_left = switches.fail_times
        return 200, self._shown()


class _FaultyExchange:
    """One request between client and agent: all messages of both directions pass through it."""

    def __init__(self, record: _Record, switches: Switches, receive: Receive, send: Send) -> None:
        self.body_read = asyncio.Event()
        self._record = record
        self._switches = switches
        self._receive = receive
        self._send = send
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._left = asyncio.Event()
        self._chunks = 0
        self._garbled = False
        self._is_stream = False
        self._complete = False

    async def pump(self) -> None:
        """Reads the connection ahead of the agent, so that a disconnect is noticed at once."""
        while not self._left.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self._complete:
                    self._record.client_left_monotonic_s = time.monotonic()
                self._left.set()
            else:
                self._record.body_bytes += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                self.body_read.set()
            self._messages.put_nowait(message)

    async def wait(self, delay_s: float) -> None:
        """Waits until the delay is over or the client has disconnected."""
        if delay_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), delay_s)

    async def receive(self) -> Message:
        return await self._messages.get()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._on_head(message)
        elif message["type"] == "http.response.body":
            await self._before_chunk()
            self._chunks += bool(message.get("body"))
            self._written(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        await self._send(message)

    def _on_head(self, message: Message) -> None:
        headers = dict(message.get("headers", ()))
        self._record.status = message["status"]
        own_id = headers.get(HEADER_REQUEST_ID.encode(), b"")
        self._record.request_id = self._record.request_id or own_id.decode("latin-1")
        self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")

    async def _before_chunk(self) -> None:
        switches = self._switches
        if _is_reached(switches.close_after_chunks, self._chunks):
            # A server closes the connection if the application returns in the middle of a response.
            self._messages.put_nowait({"type": "http.disconnect"})
            raise _ConnectionDropped("The script requests a closed connection.")
        if _is_reached(switches.stall_after_chunks, self._chunks):
            await self._left.wait()
            raise _ConnectionDropped("The client disconnected from the stalled response.")
        garbles = self._is_stream and not self._garbled
        if garbles and _is_reached(switches.malformed_after_chunks, self._chunks):
            self._garbled = True
            self._written(MALFORMED_LINE)
            body = {"type": "http.response.body", "body": MALFORMED_LINE, "more_body": True}
            await self._send(body)

    def _written(self, data: bytes) -> None:
        self._record.response_bytes += len(data)
        self._record.digest.update(data)


def _is_reached(limit: int | None, count: int) -> bool:
    return limit is not None and count >= limit


def _begin(scope: Scope) -> _Record:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
    ]
    by_name = dict(headers)
    framing = "content-length" if "content-length" in by_name else "none"
    return _Record(
        request_id=by_name.get(HEADER_REQUEST_ID, ""),
        method=scope["method"],
        path=scope["path"],
        headers=headers,
        framing="chunked" if "transfer-encoding" in by_name else framing,
        arrived_monotonic_s=time.monotonic(),
    )


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= MAX_CONTROL_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


async def _respond(
    send: Send, status: int, value: object, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = msgspec.json.encode(value)
    all_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
