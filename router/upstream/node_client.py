"""The router's client of one node: inference requests, and the client of control calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from node.protocol.headers import (
    HEADER_ORIGIN,
    HEADER_PROOF,
    HEADER_REQUEST_ID,
    HEADER_REQUESTED_MODEL,
    HEADER_SALT,
)
from node.protocol.lifecycle import Peer
from registry.records import NodeRecord
from router.settings import CONTROL_TIMEOUT_S
from router.states import KIND_AGENT
from router.types import Lease, Ticket
from router.upstream.control_channel import Place
from router.upstream.control_client import ControlClient
from router.upstream.credentials import NodeCredential
from router.upstream.http_client import Upstream
from router.upstream.http_failures import CutOff, UpstreamBroken
from router.upstream.http_response import Response
from router.upstream.origins import RequestMarks

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Longest response that is read whole; a stored response includes its input."""


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """A response that has been read whole."""

    status: int
    headers: dict[bytes, bytes]
    """Headers by name in lower case."""
    body: bytes


class NodeClient:
    """One node's connection pool. No pool is shared, so that one dead node blocks no other."""

    def __init__(self, url: str, credential: NodeCredential, kind: str = KIND_AGENT) -> None:
        self.url = url
        self._is_agent = kind == KIND_AGENT
        self._credential = credential
        pin = credential.pin()
        self._upstream = Upstream(url, pin)
        self.control = ControlClient(
            Place(url, self._upstream.host, pin), credential, is_agent=self._is_agent
        )
        self._relay_starts: dict[str, bytes] = {}

    @classmethod
    def of(cls, record: NodeRecord) -> NodeClient:
        return cls(record.url, NodeCredential.from_text(record.credential), record.kind)

    async def __aenter__(self) -> NodeClient:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._upstream.close()
        await self.control.close()

    async def as_peer(self, model: str) -> Peer:
        """Returns what another node needs to copy the model from this one. Raises what
        `ControlClient.status` raises."""
        share = await self.control.share(model)
        return Peer(self.url, share, self._credential.certificate)

    def set_credential(self, credential: NodeCredential) -> None:
        """Makes later requests use another token of the same node; those in progress go on."""
        self._credential = credential
        self._relay_starts.clear()
        self.control.set_credential(credential)

    async def renew(self) -> None:
        """Makes all later requests connect anew; control calls in progress fail."""
        self._upstream.renew()
        await self.control.close()

    @property
    def addresses(self) -> list[str]:
        """Addresses that the node's name resolved to last, in the order in which they are tried."""
        return self._upstream.host.known

    def break_all(self) -> None:
        """Fails the inference requests on a node that has gone silent; control calls continue."""
        self._upstream.break_all(UpstreamBroken("The node has stopped responding."))

    def cut_all(self) -> None:
        """Ends the inference requests on a node that is drained, which does not count as its
        failure."""
        self._upstream.break_all(CutOff("The node is being drained."))

    # --- inference ---

    def open(self, ticket: Ticket, lease: Lease, marks: RequestMarks) -> Awaitable[Response]:
        """Sends an inference request; returns once the response's head has arrived.

        Of the caller's headers only its trace context is sent, so that its key never leaves the
        router. A third-party server does not learn whose request it is. Raises `OSError` if the
        connection fails.
        """
        start = self._relay_starts.get(ticket.path)
        if start is None:
            start = self._relay_starts[ticket.path] = self._start("POST", ticket.path)
        own, request_id = "", lease.node_request_id
        if not self._is_agent:
            request_id = request_id.removeprefix(f"{ticket.caller.owner}-")
        else:
            # A third-party server's model name may contain anything, even line breaks.
            requested = ticket.requested_model if ticket.requested_model.isprintable() else ""
            own = (
                f"{HEADER_ORIGIN}: {marks.origin}\r\n{HEADER_PROOF}: {marks.proof}\r\n"
                f"{HEADER_REQUESTED_MODEL}: {requested}\r\n"
            )
            if ticket.caller.salt:
                own += f"{HEADER_SALT}: {ticket.caller.salt}\r\n"
        rest = (
            f"{HEADER_REQUEST_ID}: {request_id}\r\n{own}{ticket.trace}"
            f"content-length: {len(ticket.body)}\r\n\r\n"
        )
        return self._upstream.send(start + rest.encode(), ticket.body)

    async def follow_up(self, method: str, target: str, origin: str) -> WholeResponse:
        """Sends an agent a request about an object that it stores; `target` is a path with its
        query.

        Raises `OSError` if the connection fails, if the response takes longer than
        `CONTROL_TIMEOUT_S`, and if it is longer than `MAX_RESPONSE_BYTES`.
        """
        head = self._start(method, target)
        head += f"{HEADER_ORIGIN}: {origin}\r\ncontent-length: 0\r\n\r\n".encode()
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            response = await self._upstream.send(head, b"")
            try:
                body = await response.read_all(MAX_RESPONSE_BYTES)
            finally:
                response.close()
        return WholeResponse(response.status, response.headers, body)

    def _start(self, method: str, target: str) -> bytes:
        """Encodes the request line and the headers that are the same for every request."""
        parts = urlsplit(self.url)
        fixed = {
            "host": parts.netloc,
            "content-type": "application/json",
            "accept-encoding": "identity",
            **self._credential.headers(),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        return f"{method} {parts.path}{target} HTTP/1.1\r\n{lines}".encode()
