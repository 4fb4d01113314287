"""One HTTP request under `/v1`: its head, its body, and the response so far."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TypeVar
from urllib.parse import parse_qs

from starlette.types import Message, Receive, Scope, Send

from node.agent.open_request import Sender
from node.dialects.anthropic import errors
from node.errors import BodyTooLarge, MethodNotAllowed, NodeError, UnknownPath
from node.protocol.bounds import MAX_BODY_BYTES, ORIGIN_CHARS, PROOF_CHARS
from node.protocol.error_envelopes import ollama_envelope, openai_envelope
from node.protocol.headers import HEADER_ORIGIN, HEADER_PROOF, HEADER_REQUEST_ID, HEADER_SALT
from node.protocol.ids import client_id
from node.protocol.paths import ApiDialect, dialect_of
from node.request import TextRequest
from node.server.access import Access
from node.server.body_memory import Bodies
from node.server.left_out import left_out_headers, sentence
from node.server.stream import Headers
from node.settings import THREAD_BODY_BYTES
from serving.fair_shares import Share
from serving.http.refusals import Refusal
from serving.tracing.context import trace_lines

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ClientDisconnected(Exception):
    """The client has disconnected; nobody reads the response."""


class Call:
    """Gives access to the request and sends its response; errors are serialized in the dialect of
    the path."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, node_id: str, bodies: Bodies
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._node_id = node_id
        self._bodies = bodies
        self._room: Share | None = None
        """The reserved room for the body; None before it is read."""
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = ""
        """The id in the node's records; empty until the request has one."""
        self.started = False
        self.complete = False
        self.path: str = scope["path"]
        # The server drops the body of a response to HEAD.
        self.method: str = "GET" if scope["method"] == "HEAD" else scope["method"]

    # --- the request --------------------------------------------------------------------------

    @property
    def origin(self) -> str:
        """The client behind the router, as the router names it; empty without a router."""
        return self.text_header(HEADER_ORIGIN)[:ORIGIN_CHARS]

    @property
    def sender(self) -> Sender:
        """All that the router reports about the client, and the trace."""
        proof = self.text_header(HEADER_PROOF)[:PROOF_CHARS]
        return Sender(self.origin, self.salt, proof, trace_lines(self._scope["headers"]))

    @property
    def salt(self) -> str:
        """Separates this client's prefixes from those of others; empty without a router."""
        return self.text_header(HEADER_SALT)

    def header(self, name: bytes) -> bytes:
        return self._headers.get(name, b"")

    def text_header(self, name: str) -> str:
        return self.header(name.encode()).decode("utf-8", "replace")

    def authorize(self, access: Access) -> None:
        """Raises `Unauthorized` without a valid token."""
        scheme, _, given = self.header(b"authorization").partition(b" ")
        token = given.strip() if scheme.lower() == b"bearer" else self.header(b"x-api-key")
        access.check(self._scope, token)

    def query(self) -> dict[str, list[str]]:
        """Returns the values of each name in the query string."""
        return parse_qs(self._scope.get("query_string", b"").decode("latin-1"))

    def require_method(self, *methods: str, exists: bool = True) -> None:
        """Raises `MethodNotAllowed` unless the method is one of `methods`; HEAD counts as GET. With
        `exists` False, the path only looks like one of ours and ends with no known name: then
        raises `UnknownPath`."""
        if self.method in methods:
            return
        if not exists:
            raise UnknownPath.at(self.path)
        raise MethodNotAllowed.at(self.path, methods)

    async def read(self, parse: Callable[[bytes], T]) -> T:
        """Reads the body and returns `parse(body)`; its room stays reserved until `close`. Raises
        `BodyTooLarge`, `ClientDisconnected`, `TooManyWaiting`, and what `parse` raises."""
        declared = self.header(b"content-length")
        # A chunked body may have any length.
        size_bytes = int(declared) if declared.isdigit() else MAX_BODY_BYTES
        if size_bytes > MAX_BODY_BYTES:
            raise BodyTooLarge
        caller = self.origin
        room = self._room = await self._bodies.reserve(caller, size_bytes)
        body = await self._read_body()
        room.resize(len(body))
        return await self._bodies.parse(caller, body, parse)

    @property
    def is_long(self) -> bool:
        """True if the body is too large to be handled on the event loop."""
        return self._room is not None and self._room.size > THREAD_BODY_BYTES

    def reserve(self, size_bytes: int) -> None:
        """Reserves more memory for what the request has loaded, until `close`."""
        if self._room is not None:
            self._room.resize(self._room.size + size_bytes)

    def close(self) -> None:
        """Releases the reserved memory at the end of the request."""
        if self._room is not None:
            self._room.release()

    async def _read_body(self) -> bytes:
        pieces: list[bytes] = []
        size_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            piece = message.get("body", b"")
            size_bytes += len(piece)
            if size_bytes > MAX_BODY_BYTES:
                raise BodyTooLarge
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)

    @contextlib.asynccontextmanager
    async def until_disconnect(self) -> AsyncIterator[None]:
        """Runs its block until the client disconnects, and then raises `ClientDisconnected` from
        it. The body must have been read before."""
        task = asyncio.current_task()
        assert task is not None
        left = False

        async def watch() -> None:
            nonlocal left
            while (await self._receive())["type"] != "http.disconnect":
                pass
            # A server reports a disconnect after a complete response, too.
            if not self.complete:
                left = True
                task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not left:
                raise
            task.uncancel()
            raise ClientDisconnected from None
        finally:
            watcher.cancel()

    # --- the response ------------------------------------------------------------------------

    def response_headers(self, request: TextRequest) -> Headers:
        """Returns the headers of a request's response. What was left out of the request is named in
        them and in the log."""
        if request.left_out:
            logger.info("Request %s: %s.", self.request_id, sentence(request.left_out))
        return [*self.model_headers(request.model), *left_out_headers(request.left_out)]

    def model_headers(self, model: str) -> Headers:
        # A header can have neither control characters nor text beyond Latin-1.
        safe = model.encode("ascii", "backslashreplace") if model.isprintable() else b""
        return [(b"x-fleet-model", safe), *self.id_headers()]

    def id_headers(self) -> Headers:
        shown = self.shown_id.encode()
        if not shown:
            return []
        # Anthropic's clients read the id from another header.
        names = [HEADER_REQUEST_ID.encode()] + [b"request-id"] * is_anthropic(self.path)
        return [(name, shown) for name in names]

    @property
    def shown_id(self) -> str:
        """The request's id as clients see it; empty before there is one."""
        if not self.request_id:
            return ""
        return client_id("req_", self._node_id, self.request_id)

    async def send(self, message: Message) -> None:
        """Sends an ASGI message. Raises `ClientDisconnected`."""
        self.started = True
        if message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError as exc:
            raise ClientDisconnected from exc

    async def send_json(self, body: bytes, headers: Headers | None = None) -> None:
        await _send_json(self.send, 200, body, self.id_headers() if headers is None else headers)

    async def send_error(self, error: NodeError) -> None:
        """Sends an error as a complete response."""
        headers = self.id_headers()
        body = error_body(self.path, error, self.shown_id)
        await _send_json(self.send, error.status, body, [*headers, *error.headers()])


def error_body(path: str, error: NodeError, request_id: str = "") -> bytes:
    """Returns the JSON of the error in the dialect of the path."""
    dialect = dialect_of(path)
    if dialect is ApiDialect.OLLAMA:
        return ollama_envelope(error)
    envelope = errors.error_body if dialect is ApiDialect.ANTHROPIC else openai_envelope
    return envelope(error, request_id)


def refusal_body(refusal: Refusal, path: str) -> bytes:
    """Returns the JSON for a request that was refused before any handler saw it."""
    error = NodeError(refusal.message)
    error.set_status(refusal.status, refusal.code, refusal.kind)
    return error_body(path, error)


def is_anthropic(path: str) -> bool:
    """True if the path has Anthropic's dialect."""
    return dialect_of(path) is ApiDialect.ANTHROPIC


async def send_error(send: Send, error: NodeError, path: str = "") -> None:
    """Sends an error as a complete response, for paths outside `/v1`."""
    await _send_json(send, error.status, error_body(path, error), error.headers())


async def _send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
