"""Sends one request to a router and reads its whole response, with the standard library only:
importing an HTTP library takes longer than the request."""

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0
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
    parts = urlsplit(request.url)
    connect = _CONNECTIONS[parts.scheme]
    connection = connect(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise ConnectFailed(str(error)) from error
        connection.sock.settimeout(request.timeout_s)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(request.method, target, request.body, dict(request.headers))
        response = connection.getresponse()
        return RouterResponse(request.url, response.status, response.read())
    except http.client.RemoteDisconnected:
        raise
    except http.client.IncompleteRead as error:
        raise ConnectionError("its response ended early") from error
    except http.client.HTTPException as error:
        raise ConnectionError("its response is not HTTP") from error
    finally:
        connection.close()
