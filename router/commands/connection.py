"""One request to a router, and its whole answer, by the standard library: to import an HTTP library
takes longer than to ask."""

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class NotConnected(OSError):
    """Nothing takes the connection."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    method: str
    url: str
    timeout_s: float
    """Longest silence of the answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer."""

    url: str
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Raises `ValueError`."""
        return json.loads(self.body)


Send = Callable[[Asked], Answered]


def send(asked: Asked) -> Answered:
    """A connection of its own for each request: the router may have started anew since the last
    one. Proxies of the environment are for the internet, and are left alone. Raises `NotConnected`,
    or another `OSError`, of these `TimeoutError` where nothing comes."""
    parts = urlsplit(asked.url)
    connect = _CONNECTIONS[parts.scheme]
    connection = connect(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NotConnected(str(error)) from error
        connection.sock.settimeout(asked.timeout_s)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(asked.method, target, asked.body, dict(asked.headers))
        response = connection.getresponse()
        return Answered(asked.url, response.status, response.read())
    except http.client.RemoteDisconnected:
        raise
    except http.client.IncompleteRead as error:
        raise ConnectionError("its answer broke off in the middle") from error
    except http.client.HTTPException as error:
        raise ConnectionError("what it says is not HTTP") from error
    finally:
        connection.close()
