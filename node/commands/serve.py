"""`node-agent serve`: settings to a listening server, and a bounded way down."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from node.app import STOP_GRACE_S, NodeApp, build_app, is_loopback, load_token
from node.commands.configuration import need_extra
from node.errors import StartError
from node.settings import Settings
from serving.client_connection import KEEP_ALIVE_S, protocol_of
from serving.open_files import allow_many_files

GRACE_S = 10.0
"""How long running answers may take to end at shutdown."""
FLUSH_S = 2.0
"""How long clients may take to read the end of what they were sent."""
LAST_RESORT_S = 5
"""How long what then still runs may go on before uvicorn cancels it."""
POLL_S = 0.02
BACKLOG = 2048


def serve(settings: Settings) -> None:
    """Serves until a signal, or the end of standard input where the settings say so. Raises
    `StartError`."""
    check_bind(settings)
    if settings.exit_on_stdin_eof and sys.stdin is None:
        raise StartError("Standard input is closed, and the agent would end with it at once.")
    if settings.engine == "text":
        need_extra()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    allow_many_files()
    with bind(settings.host, settings.port) as listener:
        # Before anything else can fail, since the next start does not show it again.
        token, is_new = load_token(settings)
        if is_new:
            announce_token(settings.host, listener, token)
        app = build_app(settings)
        server = AgentServer(app, url_of(settings.host, listener))
        if settings.exit_on_stdin_eof:
            watch_end(sys.stdin.fileno(), server.stop)
        # Once the server has stopped, one more Ctrl-C must not make a failure of a clean end.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        server.run(sockets=[listener])


def check_bind(settings: Settings) -> None:
    """Raises `StartError` for an address that others can reach over plain HTTP, unless the
    settings allow it."""
    if is_loopback(settings.host) or settings.allow_plain_http:
        return
    raise StartError(
        f"{settings.host} is not a loopback address, and over plain HTTP everybody on the way can "
        "read the token; bind 127.0.0.1, or add --allow-plain-http in a network that you trust."
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises `StartError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartError(f"{host} is not an address of this machine: {error.strerror}.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for the connections of the last run to time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"Port {port} of {host} is in use; stop what uses it or choose another --port."
            ) from None
        raise StartError(f"{host}:{port} cannot be bound: {error.strerror}.") from None
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """The address that the listener can be reached at, as far as this machine knows."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable_host(host: str) -> str:
    """A name for the machine where the host means all its addresses, else the host itself."""
    try:
        is_any = not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_any = False
    return socket.gethostname() if is_any else host


def announce_token(host: str, listener: socket.socket, token: str) -> None:
    """Prints what a router needs, at the first start only."""
    url = url_of(reachable_host(host), listener)
    plain_http = "" if is_loopback(host) else " --allow-plain-http"
    print("This is the agent's first start. To add it to a router, run there:")
    print(f"  router add-node {url} --token {token}{plain_http}", flush=True)


def watch_end(descriptor: int, stop: Callable[[], None]) -> threading.Thread:
    """Calls `stop` when the file that is read from ends, from a thread of its own."""

    def read() -> None:
        # Not through sys.stdin: its lock, held by this thread, would abort the interpreter's exit.
        while os.read(descriptor, 4096):
            pass
        stop()

    thread = threading.Thread(target=read, name="stdin", daemon=True)
    thread.start()
    return thread


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
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_RESORT_S,
    )


class AgentServer(uvicorn.Server):
    """uvicorn with a line that says when it listens, and a shutdown that loses no accounts."""

    def __init__(self, app: NodeApp, url: str) -> None:
        super().__init__(server_config(app))
        self._agent = app.agent
        self._url = url
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Begins the shutdown; from any thread."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the shutdown, the next one ends its grace. uvicorn's own way
        would leave at the second one without the end of the engines."""
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._agent.requests.hurry)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            print(f"node-agent listening on {self._url}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        await self._agent.drain(GRACE_S)
        await self._agent.close(STOP_GRACE_S)
        await self._flush()
        await super().shutdown(sockets)

    async def _flush(self) -> None:
        """Waits for the last bytes, and cuts off the clients that do not read them: uvicorn would
        cancel their requests, with a traceback for each."""
        connections = self.server_state.connections
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while connections:
                    await asyncio.sleep(POLL_S)
        for connection in tuple(connections):
            connection.transport.abort()
