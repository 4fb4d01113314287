"""Sends a command's requests to the running agent: address, token, and errors as one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
from rich.progress import Progress

from node.commands.configuration import read_settings
from node.errors import NodeError
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PROTOCOL_VERSION, ControlError
from serving.chat.load import refusal
from serving.own_machine import is_loopback
from serving.server_url import own_url, read_url
from serving.terminal.error_text import error_text
from serving.terminal.output import put

CONNECT_TIMEOUT_S = 5.0
GET_TIMEOUT_S = 10.0
"""An agent responds at once to a request for what it knows; another program may never respond."""
T = TypeVar("T")


class CommandFailed(NodeError):
    """The command failed."""


class NotRunning(CommandFailed):
    """No agent responds."""


class CommandRefused(CommandFailed):
    """The agent refuses the command."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The code of the agent's error; empty if it has none."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of an agent or another OpenAI server, with its token or key."""

    url: str
    key: str = ""


def find_server(
    home: Path | None, url: str | None, key: str | None, *, is_spare: bool = False
) -> ServerAddress:
    """The server at `url`, or this machine's agent, whose token is sent to no other machine. A key
    that `is_spare` does not replace that token. Raises `StartError`, `BadSetting` and
    `CommandFailed`."""
    settings = read_settings({"home": home})
    if url is None:
        if is_spare or key is None:
            key = _token(settings.token_file) or key
        url = own_url(settings.host, settings.port)
    url = read_url(url, "http://127.0.0.1:8801")
    if key is None and is_loopback(urlsplit(url).hostname or ""):
        key = _token(settings.token_file)
    return ServerAddress(url, (key or "").strip())


def _token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise CommandFailed(f"The token {file} cannot be read: {exc.strerror}.") from None


def ask(
    server: ServerAddress,
    path: str,
    kind: type[T],
    command: msgspec.Struct | None = None,
    *,
    method: str = "POST",
) -> T:
    """The decoded response of a control route. Raises `NotRunning`, `CommandRefused` and
    `CommandFailed`."""
    body = {} if command is None else msgspec.to_builtins(command)
    with posting(server, path, body, method=method) as response:
        try:
            return msgspec.json.decode(response.read(), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise CommandFailed(f"{server.url} does not respond like a node agent.") from None


@contextmanager
def posting(
    server: ServerAddress, path: str, body: dict[str, Any], *, method: str = "POST"
) -> Iterator[httpx.Response]:
    """The response of a control route, streamed; only a GET has a time limit. Raises `NotRunning`,
    `CommandRefused` and `CommandFailed`."""
    headers = {HEADER_PROTOCOL: str(PROTOCOL_VERSION)}
    if server.key:
        headers["authorization"] = f"Bearer {server.key}"
    read_s = GET_TIMEOUT_S if method == "GET" else None
    timeout = httpx.Timeout(read_s, connect=CONNECT_TIMEOUT_S)
    # Proxies in the environment are for the internet.
    with httpx.Client(timeout=timeout, trust_env=False, headers=headers) as client:
        try:
            with client.stream(method, server.url + path, json=body) as response:
                if not response.is_success:
                    response.read()
                    raise refused(response)
                yield response
        except httpx.HTTPError as exc:
            raise unreachable(server, exc) from exc


def print_progress(bars: Progress, line: str) -> None:
    """Prints a line on standard error if no progress bars are shown."""
    if bars.disable:
        put(line, err=True)


def unreachable(server: ServerAddress, error: httpx.HTTPError) -> CommandFailed:
    """The failed connection as a sentence."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return NotRunning(
            f"Nothing responds at {server.url}; start the agent with `node-agent serve`, or give "
            "its --url."
        )
    return CommandFailed(f"The connection to {server.url} broke ({error_text(error)}).")


def refused(response: httpx.Response) -> CommandRefused:
    """The error of a response to a control route whose body has been read."""
    try:
        reason = msgspec.json.decode(response.content, type=ControlError).code
    except (msgspec.MsgspecError, UnicodeDecodeError):
        reason = ""
    return CommandRefused(refusal(response), reason)
