"""A caller's connection: uvicorn's, but an answer's head and the bytes after it leave in one write.

A write is a system call, and two of them were a tenth of the router's time (docs/decisions/0008).
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "
_INFORMATIONAL = b"HTTP/1.1 1"


class JoiningTransport:
    """A transport that keeps an answer's head back for the write that follows in the same turn of
    the event loop; at the end of the turn it goes out alone."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._head = b""
        self._call_soon = asyncio.get_running_loop().call_soon

    def write(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        elif data.startswith(_HEAD) and not data.startswith(_INFORMATIONAL):
            self._head = data
            self._call_soon(self._flush)
            return
        self._inner.write(data)

    def close(self) -> None:
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._inner.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class JoiningProtocol(HttpToolsProtocol):
    """uvicorn's protocol on a `JoiningTransport`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        joining = JoiningTransport(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, joining))
