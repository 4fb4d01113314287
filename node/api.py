"""`/v1/*` as a raw ASGI application, in front of everything else.

One watcher for each request waits for the client's disconnect and cancels the work in whatever
phase it is.
"""

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.types import Message, Receive, Scope, Send

from node.agent import report
from node.agent.agent import Agent
from node.errors import BodyTooLarge, MethodNotAllowed, NodeError, Unauthorized, UnknownPath
from node.openai import (
    Answer,
    TextRequest,
    error_body,
    model_body,
    models_body,
    parse_chat,
    parse_completion,
)
from node.protocol.messages import HEADER_ORIGIN, HEADER_REQUEST_ID, HEADER_REQUESTED_MODEL
from node.settings import HOLD_HEAD_S, MAX_BODY_BYTES, THREAD_BODY_BYTES
from node.stream import EventStream, Headers, collect

_GENERATE: dict[str, Callable[[bytes], TextRequest]] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
}
_MODELS = "/v1/models"

logger = logging.getLogger(__name__)


class ClientLeft(Exception):
    """The client closed the connection; nobody reads an answer."""


class Api:
    """The OpenAI endpoints of one agent."""

    def __init__(self, agent: Agent, token: str, *, hold_head_s: float = HOLD_HEAD_S) -> None:
        self._agent = agent
        self._token = token.encode()
        self._hold_head_s = hold_head_s
        self._created_s = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _Call(scope, send)
        try:
            await self._answer(call, receive)
        except ClientLeft:
            return
        except NodeError as exc:
            await send_error(call.send, exc, call.id_headers())
        except Exception:
            logger.exception("Request %s failed.", call.request_id)
            if call.started:
                raise
            failure = NodeError("The node agent failed on this request.")
            await send_error(call.send, failure, call.id_headers())

    async def _answer(self, call: "_Call", receive: Receive) -> None:
        self._authorize(call)
        path = call.path
        if parse := _GENERATE.get(path):
            call.need_method("POST")
            await self._generate(
                call, await _parsed(parse, await _read_body(call, receive)), receive
            )
        elif path == _MODELS:
            call.need_method("GET")
            names = await self._agent.model_names()
            await call.send_json(models_body(names, self._created_s))
        elif path.startswith(_MODELS + "/"):
            call.need_method("GET")
            entry = await self._agent.find(path.removeprefix(_MODELS + "/"))
            await call.send_json(model_body(entry.name, self._created_s))
        elif path == report.PATH:
            call.need_method("GET")
            await call.send_json(msgspec.json.encode(self._agent.report()))
        else:
            raise UnknownPath(f"There is nothing at {path[:200]}.")

    def _authorize(self, call: "_Call") -> None:
        scheme, _, given = call.header(b"authorization").partition(b" ")
        token = given.strip() if scheme.lower() == b"bearer" else call.header(b"x-api-key")
        if not hmac.compare_digest(token, self._token):
            raise Unauthorized

    async def _generate(self, call: "_Call", request: TextRequest, receive: Receive) -> None:
        job = self._agent.job(
            request,
            call.text_header(HEADER_REQUEST_ID),
            call.text_header(HEADER_ORIGIN),
        )
        call.request_id = job.request_id
        shown = call.text_header(HEADER_REQUESTED_MODEL) or request.model
        answer = Answer(request, job.request_id, shown, int(time.time()))
        batches = self._agent.run(job, self._hold_head_s)
        async with _until_disconnect(call, receive), contextlib.aclosing(batches):
            if not request.stream:
                body, headers = await collect(batches, answer)
                await call.send_json(body, [*call.model_headers(request.model), *headers])
                return
            stream = EventStream(answer, call.send, call.model_headers(request.model))
            await stream.run(batches, self._hold_head_s)


class _Call:
    """One request's head, and its answer so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = ""
        self.started = False
        self.complete = False
        self.path: str = scope["path"]

    def header(self, name: bytes) -> bytes:
        return self._headers.get(name, b"")

    def text_header(self, name: str) -> str:
        return self.header(name.encode()).decode("utf-8", "replace")

    def need_method(self, method: str) -> None:
        if self._scope["method"] != method:
            raise MethodNotAllowed(f"{self.path} takes {method} only.")

    def model_headers(self, model: str) -> Headers:
        # A header holds no control characters and no text beyond Latin-1.
        safe = model.encode("ascii", "backslashreplace") if model.isprintable() else b""
        return [(b"x-fleet-model", safe), *self.id_headers()]

    async def send(self, message: Message) -> None:
        """Raises `ClientLeft`."""
        self.started = True
        if message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError as exc:
            raise ClientLeft from exc

    async def send_json(self, body: bytes, headers: Headers | None = None) -> None:
        await _send_json(self.send, 200, body, self.id_headers() if headers is None else headers)

    def id_headers(self) -> Headers:
        if not self.request_id:
            return []
        return [(HEADER_REQUEST_ID.encode(), self.request_id.encode())]


async def send_error(send: Send, error: NodeError, headers: Headers | None = None) -> None:
    """A whole answer that holds an error."""
    more = list(headers or [])
    if error.retry_after_s is not None:
        more.append((b"retry-after", str(error.retry_after_s).encode()))
    if isinstance(error, Unauthorized):
        more.append((b"www-authenticate", b"Bearer"))
    await _send_json(send, error.status, error_body(error), more)


async def _send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _read_body(call: _Call, receive: Receive) -> bytes:
    """Raises `BodyTooLarge` as soon as it is known to be, or `ClientLeft`."""
    declared = call.header(b"content-length")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise BodyTooLarge
    pieces: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        piece = message.get("body", b"")
        size_bytes += len(piece)
        if size_bytes > MAX_BODY_BYTES:
            raise BodyTooLarge
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _parsed(parse: Callable[[bytes], TextRequest], body: bytes) -> TextRequest:
    """`parse(body)`, in a thread for a large body, so that it stalls no stream."""
    if len(body) <= THREAD_BODY_BYTES:
        return parse(body)
    return await asyncio.to_thread(parse, body)


@contextlib.asynccontextmanager
async def _until_disconnect(call: _Call, receive: Receive) -> AsyncIterator[None]:
    """Runs its block until the client leaves, which becomes `ClientLeft`."""
    task = asyncio.current_task()
    assert task is not None
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        # A server reports a disconnect after a complete answer, too.
        if not call.complete:
            left = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not left:
            raise
        task.uncancel()
        raise ClientLeft from None
    finally:
        watcher.cancel()
