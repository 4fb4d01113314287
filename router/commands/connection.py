"""Sends one request to a router and reads its response, with the standard library only:
importing an HTTP library takes longer than the request."""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0
_OK = 200
_PIECE_BYTES = 256 * 1024
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class ConnectFailed(OSError):
    """No connection could be made."""


@dataclass(frozen=True, slots=True)
class RouterRequest:
    """A request."""

    method: str
    url: str
    timeout_s: float
    """Longest interval without data."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class RouterResponse:
    """A whole response."""

    url: str
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Parses the body. Raises `ValueError`."""
        return json.loads(self.body)


Send = Callable[[RouterRequest], RouterResponse]


def send(request: RouterRequest) -> RouterResponse:
    """Sends the request on a new connection, since the router may have restarted since the last
    one. Proxies of the environment are ignored; they are meant for the internet. Raises
    `ConnectFailed` or another `OSError`, among them `TimeoutError` if nothing arrives."""
    with _responding(request) as response:
        return RouterResponse(request.url, response.status, response.read())


def download(request: RouterRequest, write: Callable[[bytes], object]) -> RouterResponse:
    """Sends the request as `send` does, and passes the body of a response that succeeds to `write`
    in pieces; its response has none. Raises what `send` raises, also for a body that ends early."""
    with _responding(request) as response:
        if response.status != _OK:
            return RouterResponse(request.url, response.status, response.read())
        missing = response.length or 0
        while piece := response.read(_PIECE_BYTES):
            write(piece)
            missing -= len(piece)
        if missing:
            raise ConnectionError("its response ended early")
        return RouterResponse(request.url, response.status, b"")


@contextmanager
def _responding(request: RouterRequest) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(request.url)
    connect = _CONNECTIONS[parts.scheme]
    connection = connect(parts.hostname or "", parts.port, timeout=request.connect_timeout_s)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise ConnectFailed(str(error)) from error
        connection.sock.settimeout(request.timeout_s)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(request.method, target, request.body, dict(request.headers))
        yield connection.getresponse()
    except http.client.RemoteDisconnected:
        raise
    except http.client.IncompleteRead as error:
        raise ConnectionError("its response ended early") from error
    except http.client.HTTPException as error:
        raise ConnectionError("its response is not HTTP") from error
    finally:
        connection.close()
