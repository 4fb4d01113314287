"""`node-agent serve`: starts the server with the settings, and shuts it down within a bounded
time."""

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from node.agent.announcer import Announcer, Service, own_addresses
from node.app import (
    STOP_GRACE_S,
    NodeApp,
    build_app,
    build_store,
    check_settings,
    load_token,
)
from node.commands.backups import exclude_from_backups
from node.commands.configuration import need_extra, valid_settings
from node.commands.own_name import own_name
from node.commands.pairing_lines import announce_pairing, announce_token
from node.errors import NodeError, StartError
from node.hardware import is_mac, read_machine, run_command, this_kernel
from node.protocol.discovery import Announcement
from node.protocol.messages import PROTOCOL_VERSION
from node.settings import Settings
from serving.errors import CannotStart
from serving.http.client_connection import KEEP_ALIVE_S, protocol_of
from serving.http.door import Entry
from serving.http.listening import (
    BACKLOG,
    is_unspecified,
    listening,
    url_of,
)
from serving.http.quiet_server import QuietServer, Stop
from serving.live_settings import LiveSettings
from serving.logs.logs import logging_to, set_level
from serving.open_files import allow_many_files
from serving.own_machine import is_loopback
from serving.processes.process_lock import LockTaken, ProcessLock
from serving.processes.stdin_end import open_stdin, watch_end
from serving.reload import reloaded_at_hangup
from serving.setting_sources import Sources
from serving.terminal.output import put
from serving.units import GIB

GRACE_S = 10.0
"""Seconds that running responses may take to end at shutdown."""
FLUSH_S = 2.0
"""Seconds that clients may take to read the rest of their responses."""
LAST_RESORT_S = 5
"""Seconds until uvicorn cancels the connections that remain."""
STOP_S = math.ceil(GRACE_S + STOP_GRACE_S + FLUSH_S + LAST_RESORT_S) + 15
"""Seconds after which an agent has ended, with a margin for engine processes and a slow disk."""
POLL_S = 0.02
ADVICE = (
    "A router is paired with a node agent by the code that `node-agent pair` shows on the agent's "
    "machine."
)


def serve(settings: Settings, sources: Sources | None = None) -> None:
    """Serves until a signal, or until the end of standard input if the settings say so; at SIGHUP
    the settings are read from `sources` again. Raises `StartError` and `CannotStart`."""
    stdin = open_stdin() if settings.exit_on_stdin_eof else None
    if settings.engine == "text":
        need_extra()
    allow_many_files()
    place = (settings.host, settings.port)
    with (
        logging_to(settings.logs),
        claimed_home(settings.home),
        listening(*place) as listeners,
    ):
        port = listeners[0].getsockname()[1]
        # Before anything else can fail, since the next start does not announce it again.
        token, is_new = load_token(settings)
        if is_new and is_loopback(settings.host):
            announce_token(settings, port, token)
        app = build_app(settings)
        if not is_loopback(settings.host):
            announce_pairing(settings, port, app.desk)
        if is_mac():
            exclude_beside(settings)
        stop = Stop()
        live = LiveSettings(settings, reading(sources), (NodeError, CannotStart))
        live.on_change(app.agent.live_parts.follow)
        live.on_change(lambda changed: set_level(changed.logs))
        announcer = announcer_of(settings, port, app)
        server = AgentServer(app, _own_url(settings, listeners), stop, live, announcer)
        if stdin is not None:
            watch_end(stdin, stop.set)
        # After the server has stopped, another Ctrl-C must not turn a clean end into a failure.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        server.run(sockets=listeners)


def checked_stop_s(sources: Sources) -> int:
    """The seconds after which an agent with these settings has ended. Raises `NodeError` and
    `CannotStart` if it would not start."""
    if valid_settings(sources).engine == "text":
        need_extra()
    return STOP_S


def reading(sources: Sources | None) -> Callable[[], Settings] | None:
    """Reads the settings anew, and checks them as a start does."""
    if sources is None:
        return None

    def read() -> Settings:
        settings = valid_settings(sources)
        check_settings(settings, read_machine(this_kernel()), build_store(settings))
        return settings

    return read


@contextlib.contextmanager
def claimed_home(home: Path) -> Iterator[None]:
    """Locks the agent's folder for this process. Raises `StartError`."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = ProcessLock(home / "agent")
    except LockTaken as taken:
        who = "another process" if taken.pid is None else f"process {taken.pid}"
        raise StartError(
            f"An agent runs on {home} already ({who}); stop it, or give this one another --home."
        ) from None
    except OSError as error:
        raise StartError(f"{home} cannot be used: {error.strerror or error}.") from None
    try:
        yield
    finally:
        lock.release()


def exclude_beside(settings: Settings) -> threading.Thread:
    """Excludes the folders from Time Machine in a thread: the start does not wait for its
    result."""
    thread = threading.Thread(
        target=exclude_from_backups, args=(settings, run_command), name="backups", daemon=True
    )
    thread.start()
    return thread


def announcer_of(settings: Settings, port: int, app: NodeApp) -> Announcer | None:
    """None for an agent that is not announced."""
    if is_loopback(settings.host) or not settings.announce:
        return None
    identity, name = app.agent.identity, own_name()
    about = Announcement(
        identity.node_id,
        identity.version,
        str(PROTOCOL_VERSION),
        identity.chip,
        read_machine(this_kernel()).memory_bytes // GIB,
        name,
    )
    is_open = is_unspecified(settings.host)
    return Announcer(
        Service(name.removesuffix(".local"), port, (), about),
        lambda: own_addresses(settings.host, is_unspecified=is_open),
    )


def _own_url(settings: Settings, listeners: Sequence[socket.socket]) -> str:
    return url_of(settings.host, listeners, tls=not is_loopback(settings.host))


def server_config(app: NodeApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_of(app.callers),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_RESORT_S,
    )


class AgentServer(QuietServer):
    """Prints a line once it listens; its shutdown loses no usage records."""

    def __init__(
        self,
        app: NodeApp,
        url: str,
        stop: Stop,
        live: LiveSettings[Settings],
        announcer: Announcer | None,
    ) -> None:
        super().__init__(
            server_config(app), stop, Entry(app.certificate.context, app.callers, ADVICE)
        )
        self._live = live
        self._announcer = announcer
        self._hangup = contextlib.ExitStack()
        self._agent = app.agent
        self._url = url
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the shutdown, the second ends its grace period. uvicorn's own
        handler would exit at the second one and leave the engines running."""
        if self._stop.is_set() and self._loop is not None:
            self._loop.call_soon_threadsafe(self._agent.requests.end_grace)
        self._stop.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._hangup.enter_context(reloaded_at_hangup(self._live, self._stop.set))
        if self.started:
            put(f"node-agent listening on {self._url}")
            if self._announcer is not None:
                self._announcer.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hangup.close()
        for server in self.servers:
            server.close()
        if self._announcer is not None:
            await self._announcer.close()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        await self._agent.drain(GRACE_S)
        await self._agent.close(STOP_GRACE_S)
        await self._flush()
        await super().shutdown(sockets)

    async def _flush(self) -> None:
        """Waits until the last bytes are sent, and aborts the connections of clients that do not
        read them: uvicorn would cancel their requests, with a traceback for each."""
        connections = self.server_state.connections
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while connections:
                    await asyncio.sleep(POLL_S)
        for connection in tuple(connections):
            connection.transport.abort()
