"""How a command reaches the router: its address, its key, and its errors as one sentence."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError

from router.commands.connection import Answered, Asked, NotConnected, Send, send
from router.errors import RouterError
from router.settings import ENV_KEY, Settings, home_of_environment, key_of_environment
from serving.own_machine import is_loopback
from serving.terminal.error_text import error_text
from serving.terminal.interrupt import Stopped

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8800"
ANSWER_TIMEOUT_S = 30.0
_JSON = {"content-type": "application/json"}


class CommandFailed(RouterError):
    """The command failed."""


class Unreachable(CommandFailed):
    """The router does not answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the router is, and the keys that this machine holds for it."""

    url: str = DEFAULT_URL
    home: Path = Path()
    key: str = ""
    """The key that the environment gives; it wins over the key files."""

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
        """Whether the router is on this machine: a key file's key goes nowhere else."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def refused(self, file: Path) -> str:
        """What to do about a key that the router did not take."""
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


def find_place(url: str | None) -> Place:
    """The router at `url`, or this machine's own; the key is the environment's. Raises
    `CommandFailed`."""
    url = (url or DEFAULT_URL).rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    if not _is_address(url):
        raise CommandFailed(f"{url!r} is not a router's address; one looks like {DEFAULT_URL}.")
    return Place(
        url=url.removesuffix("/v1"),
        home=home_of_environment(),
        key=key_of_environment(),
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # A port that is none raises.
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and url.isascii() and url.isprintable()


class AdminClient:
    """The router's admin API, as a command uses it. Every failure is a `CommandFailed`."""

    def __init__(self, place: Place, send: Send = send) -> None:
        self.place = place
        self._send = send

    def get(self, path: str, **query: str | int | float | None) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        return self._ask("POST", path, body, timeout_s)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Any:
        asked = Asked(method, f"{self.place.url}/admin{path}", timeout_s)
        if body is not None:
            asked = replace(asked, headers=_JSON, body=json.dumps(body).encode())
        answer = self._answer(asked)
        if not answer.is_success:
            raise refused(self.place, answer, self.place.admin_key_file)
        try:
            return answer.json()
        except ValueError as error:
            raise CommandFailed(f"{self.place.url} does not answer like a router.") from error

    def _answer(self, asked: Asked) -> Answered:
        """At a router's first start its key file is written after its port is open: who found none,
        and is refused, looks once more."""
        try:
            key = self.place.admin_key()
            answer = self._send(_with_key(asked, key))
            if answer.status == 401 and not key and (key := self.place.admin_key()):
                answer = self._send(_with_key(asked, key))
            return answer
        except NotConnected as error:
            raise not_running(self.place) from error
        except TimeoutError as error:
            raise silent(self.place) from error
        except OSError as error:
            raise broken(self.place, error) from error


def _with_key(asked: Asked, key: str) -> Asked:
    if not key:
        return asked
    if not key.isascii() or not key.isprintable():
        raise CommandFailed("The key has characters that no key of a router has.")
    return replace(asked, headers={**asked.headers, "authorization": f"Bearer {key}"})


@contextmanager
def goes_on(what: str) -> Iterator[None]:
    """For an order that the router carries out to its end, whoever waits for it."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(
            f"{what} goes on without this command; `router models` shows how far it is."
        ) from None


def not_running(place: Place) -> Unreachable:
    how = (
        "start it with `router serve`"
        if place.is_local
        else "check that it runs there and that the port is right"
    )
    return Unreachable(f"No router answers at {place.url}; {how}.")


def silent(place: Place) -> Unreachable:
    return Unreachable(f"The router at {place.url} does not answer in time.")


def broken(place: Place, error: Exception) -> Unreachable:
    return Unreachable(f"The connection to the router at {place.url} broke ({error_text(error)}).")


def refused(place: Place, answer: Answered, key_file: Path) -> CommandFailed:
    """The router's own sentence; for a key, also where it came from."""
    message = error_message(answer)
    if answer.status == 401:
        return CommandFailed(f"{place.url}: {message} {place.refused(key_file)}")
    return CommandFailed(message)


def error_message(answer: Answered) -> str:
    """The message in an answer's error envelope."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return (
            f"{answer.url} answered {answer.status} without a reason; is it a router of mlx-fleet?"
        )


def read_rows(row: type[T], answer: Any) -> list[T]:
    """The rows of an answer. Raises `CommandFailed` where router and command differ in version."""
    return _read(TypeAdapter(list[row]), answer)  # type: ignore[valid-type]


def read_row(row: type[T], answer: Any) -> T:
    return _read(TypeAdapter(row), answer)


def _read(adapter: TypeAdapter[T], answer: Any) -> T:
    try:
        return adapter.validate_python(answer)
    except ValidationError as error:
        raise CommandFailed(
            "The router answers in a way that this command does not know; "
            "are both of the same version of mlx-fleet?"
        ) from error


def in_path(name: str) -> str:
    """A name as the end of a path; slashes stay, since model names have them, and dots lead
    nowhere."""
    return "/".join(
        part.replace(".", "%2E") if part in (".", "..") else quote(part) for part in name.split("/")
    )
