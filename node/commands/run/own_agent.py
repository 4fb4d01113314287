"""The agent of this machine, for a command that needs one: the one that runs, or a child."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from node.commands.agent_client import CommandFailed, NotRunning, ServerAddress, find_server
from node.commands.residency.ps import agent_status
from node.hardware import python_command
from node.settings import Settings
from serving.http.listening import CannotListen, listening
from serving.processes.child_server import ChildServer
from serving.server_url import own_url
from serving.terminal.bars import progress

START_S = 120.0
STOP_S = 15.0
"""Seconds that a child may take to end, its engines included."""
HOST = "127.0.0.1"
_OWN_WORDS = "node-agent: "
_LAST_LINES = 5
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def own_agent(settings: Settings) -> Iterator[ServerAddress]:
    """The agent that runs on this home, else one that runs until the end of the block, on loopback
    only. Raises `CommandFailed`."""
    server = running_agent(settings)
    if server is not None:
        yield server
        return
    with _ended_in_order():
        child = ChildServer("node-agent", _command(settings), lambda _line: None, loud=False)
        try:
            with progress("starting a node agent"):
                url = _until_listening(child, settings)
            yield find_server(settings.home, url, None)
        finally:
            with progress("stopping the node agent"):
                child.stop(time.monotonic() + STOP_S)


def running_agent(settings: Settings) -> ServerAddress | None:
    """The agent that runs on this home; None if there is none at its usual address."""
    server = find_server(settings.home, own_url(settings.host, settings.port), None)
    try:
        agent_status(server)
    except NotRunning:
        return None
    except CommandFailed:
        # Another program has the port, or an agent of another home, which refuses the token.
        return None
    return server


def _command(settings: Settings) -> list[str]:
    # The address is the usual one if possible, so that other commands find this agent.
    return [
        *(*python_command(), "-m", "node.cli", "serve", "--home", str(settings.home)),
        *("--host", HOST, "--port", str(_free_port(settings.port)), "--exit-on-stdin-eof"),
    ]


def _free_port(usual: int) -> int:
    """The usual port, or 0 for any if it is taken."""
    try:
        with listening(HOST, usual):
            return usual
    except CannotListen:
        return 0


def _until_listening(child: ChildServer, settings: Settings) -> str:
    try:
        url = child.until_listening(START_S)
    except TimeoutError as error:
        raise CommandFailed(f"{error}.") from None
    if url is None:
        raise CommandFailed(_failure(child.last_words(), settings))
    return url


def _failure(lines: list[str], settings: Settings) -> str:
    """The reason why an agent did not start, from the end of its standard error."""
    printed = [line for line in lines if line.strip()]
    own = [line.removeprefix(_OWN_WORDS) for line in printed if line.startswith(_OWN_WORDS)]
    if own and "runs on" in own[-1]:
        return (
            f"An agent runs on {settings.home}, but not at port {settings.port}; name its address "
            "with --url."
        )
    if own:
        return own[-1]
    return " ".join(["The agent ended at its start.", *printed[-_LAST_LINES:]])


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turns signals that would end this process at once into an exit that stops the child."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {which: signal.signal(which, end) for which in _ENDINGS}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
