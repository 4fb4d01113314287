"""Access of a command to the router: address, key, and errors as one sentence."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError

from node.protocol.paths import PATH_MODELS, PATH_REQUESTS
from router.commands.connection import (
    ConnectFailed,
    RouterRequest,
    RouterResponse,
    Send,
    download,
    send,
)
from router.errors import RouterError
from router.settings import ENV_KEY, Settings, key_of_environment, read_settings
from serving.own_machine import is_loopback
from serving.server_url import own_url, read_url
from serving.terminal.error_text import error_text
from serving.terminal.interrupt import Stopped

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8800"
RESPONSE_TIMEOUT_S = 30.0
_UNAUTHORIZED = 401
_JSON = {"content-type": "application/json"}


class CommandFailed(RouterError):
    """The command failed."""


class Unreachable(CommandFailed):
    """The router does not respond."""


class NotRunning(Unreachable):
    """No router listens at the address."""


@dataclass(frozen=True, slots=True)
class RouterAccess:
    """Address of the router, and the keys that this machine has for it."""

    url: str = DEFAULT_URL
    home: Path = Path()
    key: str = ""
    """Key from the environment; it wins over the key files."""

    def admin_key(self) -> str:
        return self.key or self._from_file(self.admin_key_file)

    def inference_key(self) -> str:
        return self.key or self._from_file(self.first_key_file)

    @property
    def admin_key_file(self) -> Path:
        return Settings(home=self.home).admin_key_file

    @property
    def first_key_file(self) -> Path:
        return Settings(home=self.home).first_key_file

    @property
    def is_local(self) -> bool:
        """True if the router is on this machine; keys from key files are sent nowhere else."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def refused(self, file: Path) -> str:
        """Explains what to do about a key that the router refused."""
        if self.key:
            return f"It refused the key in {ENV_KEY}."
        if not self.is_local:
            return f"Give a key of that router in the environment variable {ENV_KEY}."
        if file.exists():
            return f"It refused the key in {file}; does that router have another home?"
        return f"There is no key in {file}; give one in the environment variable {ENV_KEY}."

    def _from_file(self, file: Path) -> str:
        if not self.is_local:
            return ""
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CommandFailed(f"The key file {file} cannot be read ({error.strerror}).") from None


def hasty_client(url: str | None, patience_s: float) -> "AdminClient":
    """A client of the router at `url`, or of this machine's own, that waits no longer for a
    connection or for data. Raises what `find_router` raises."""

    def hurry(request: RouterRequest) -> RouterResponse:
        return send(replace(request, timeout_s=patience_s, connect_timeout_s=patience_s))

    return AdminClient(find_router(url), hurry)


def find_router(url: str | None) -> RouterAccess:
    """Returns the router at `url`, or this machine's own, with the key from the environment. Raises
    `StartError` and `BadSetting`."""
    settings = read_settings({})
    url = url or own_url(settings.host, settings.port)
    return RouterAccess(read_url(url, DEFAULT_URL), settings.home, key_of_environment())


class AdminClient:
    """The router's admin API for commands. Every failure is a `CommandFailed`."""

    def __init__(self, access: RouterAccess, send: Send = send) -> None:
        self.access = access
        self._send = send

    def get(self, path: str, **query: str | float | list[str] | None) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._request("GET", f"{path}?{urlencode(given, doseq=True)}" if given else path)

    def post(
        self, path: str, body: Mapping[str, Any], timeout_s: float = RESPONSE_TIMEOUT_S
    ) -> Any:
        return self._request("POST", path, body, timeout_s)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._request("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._request("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self._request("DELETE", path)

    def download(self, path: str, write: Callable[[bytes], object], timeout_s: float) -> None:
        """Sends a POST without a body, and passes the response's body to `write` in pieces."""
        request = RouterRequest("POST", f"{self.access.url}/admin{path}", timeout_s)
        response = self._response(request, lambda sent: download(sent, write))
        if not response.is_success:
            raise refused(self.access, response, self.access.admin_key_file)

    def models(self, key: str) -> list[Any]:
        """Returns the models that requests with the key may name; the admin's if it is empty."""
        response = self._models(key)
        if response.status == _UNAUTHORIZED and key:
            raise CommandFailed(f"{self.access.url} refuses the key that was given.")
        if not response.is_success:
            raise refused(self.access, response, self.access.admin_key_file)
        return _data(self.access, response)

    def requests(self) -> list[Any]:
        """Returns the requests of all keys that run or wait."""
        request = RouterRequest("GET", f"{self.access.url}{PATH_REQUESTS}", RESPONSE_TIMEOUT_S)
        response = self._response(request, self._send)
        if not response.is_success:
            raise refused(self.access, response, self.access.admin_key_file)
        return _data(self.access, response)

    def accepts(self, key: str) -> bool:
        """Returns True if requests with that key are served."""
        return self._models(key).is_success

    def _models(self, key: str) -> RouterResponse:
        request = RouterRequest("GET", f"{self.access.url}{PATH_MODELS}", RESPONSE_TIMEOUT_S)
        return self._response(request, self._send, key)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> Any:
        request = RouterRequest(method, f"{self.access.url}/admin{path}", timeout_s)
        if body is not None:
            request = replace(request, headers=_JSON, body=json.dumps(body).encode())
        response = self._response(request, self._send)
        if not response.is_success:
            raise refused(self.access, response, self.access.admin_key_file)
        try:
            return response.json()
        except ValueError as error:
            raise CommandFailed(f"{self.access.url} does not respond like a router.") from error

    def _response(self, request: RouterRequest, send: Send, own_key: str = "") -> RouterResponse:
        """Sends the request, with the admin's key if it has none of its own. At its first start a
        router opens its port before it writes its key file, so that a request without a key that
        gets 401 is sent again if there is a key by then."""
        try:
            key = own_key or self.access.admin_key()
            response = send(_with_key(request, key))
            if response.status == 401 and not key and (key := self.access.admin_key()):
                response = send(_with_key(request, key))
            return response
        except ConnectFailed as error:
            raise not_running(self.access) from error
        except TimeoutError as error:
            raise silent(self.access) from error
        except OSError as error:
            raise broken(self.access, error) from error


def _data(access: RouterAccess, response: RouterResponse) -> list[Any]:
    """The rows of a list in OpenAI's form."""
    try:
        return list(response.json()["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{access.url} does not respond like a router.") from error


def _with_key(request: RouterRequest, key: str) -> RouterRequest:
    if not key:
        return request
    if not key.isascii() or not key.isprintable():
        raise CommandFailed("The key has characters that no key of a router has.")
    return replace(request, headers={**request.headers, "authorization": f"Bearer {key}"})


@contextmanager
def continues_in_router(what: str) -> Iterator[None]:
    """Reports on Ctrl-C that the router completes the order without this command."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(
            f"{what} continues without this command; `router models` shows its progress."
        ) from None


def not_running(access: RouterAccess) -> NotRunning:
    how = (
        "start it with `router serve`"
        if access.is_local
        else "check that it runs there and that the port is right"
    )
    return NotRunning(f"No router responds at {access.url}; {how}.")


def silent(access: RouterAccess) -> Unreachable:
    return Unreachable(f"The router at {access.url} does not respond in time.")


def broken(access: RouterAccess, error: Exception) -> Unreachable:
    return Unreachable(f"The connection to the router at {access.url} broke ({error_text(error)}).")


def refused(access: RouterAccess, response: RouterResponse, key_file: Path) -> CommandFailed:
    """Returns the router's own error sentence; for a refused key, also the origin of the key."""
    message = error_message(response)
    if response.status == 401:
        return CommandFailed(f"{access.url}: {message} {access.refused(key_file)}")
    return CommandFailed(message)


def error_message(response: RouterResponse) -> str:
    """Returns the message in a response's error envelope."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return (
            f"{response.url} responded with status {response.status} without a reason; "
            "is it a router of mlx-fleet?"
        )


def read_rows(row: type[T], response: Any) -> list[T]:
    """Parses the rows of a response. Raises `CommandFailed` if router and command have different
    versions."""
    return _read(TypeAdapter(list[row]), response)  # type: ignore[valid-type]


def read_row(row: type[T], response: Any) -> T:
    return _read(TypeAdapter(row), response)


def _read(adapter: TypeAdapter[T], response: Any) -> T:
    try:
        return adapter.validate_python(response)
    except ValidationError as error:
        raise CommandFailed(
            "The router's response has another format than this command expects; "
            "do both have the same version of mlx-fleet?"
        ) from error


def in_path(name: str) -> str:
    """Quotes a name as the end of a path; slashes stay, since model names contain them, and dot
    segments are encoded."""
    return "/".join(
        part.replace(".", "%2E") if part in (".", "..") else quote(part) for part in name.split("/")
    )
