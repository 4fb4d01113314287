"""`router serve`: opens sockets and core, runs the HTTP server, and shuts down."""

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
import uvloop

from registry.errors import RegistryError
from router.app import build_app, open_core
from router.client.error_dialects import refusal_body
from router.core import Core
from router.errors import StartError
from router.settings import Settings, settings_from
from serving import awake
from serving.http.callers import Callers, Limits
from serving.http.client_connection import KEEP_ALIVE_S, protocol_of
from serving.http.door import Entry
from serving.http.listening import BACKLOG, listening, refuse_open_bind, url_of
from serving.http.quiet_server import QuietServer, Stop
from serving.logs.logs import logging_to, requests_to_stdout
from serving.open_files import allow_many_files, open_files
from serving.processes.stdin_end import open_stdin, watch_end
from serving.reload import reloaded_at_hangup
from serving.setting_sources import Sources
from serving.terminal.output import put
from serving.tls.given_certificate import given_context

SHUTDOWN_S = 5.0
"""Seconds that requests may go on after the router is asked to end."""
LAST_WORDS_S = 2.0
"""Seconds after that in which clients can read why their request ended."""
_ORPHAN_S = 20.0
"""Seconds after its parent's end by which the router has exited, whatever hangs."""
_IN_USE_HINT = "If a router runs there, `router nodes` shows it."
_FILES_EACH = 2
"""A stream has a connection to its client and one to its node."""


def run(settings: Settings, sources: Sources | None = None) -> None:
    """Serves until a signal or the end of standard input; at a reload the settings are read from
    `sources` again. Raises `StartError` and `CannotStart`."""
    check(settings)
    stdin = open_stdin() if settings.exit_on_stdin_eof else None
    stop = Stop()
    allow_many_files()
    place = (settings.host, settings.port, _IN_USE_HINT)
    with logged(settings), listening(*place) as listeners, stopped_by_signals(stop):
        if stdin is not None:
            watch_end(stdin, stop.set, _ORPHAN_S)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, listeners, stop, sources))


def check(settings: Settings) -> None:
    """Raises `CannotStart` if these settings do not go together, or not with this machine."""
    if tls_context(settings) is None:
        refuse_open_bind(settings.host, allow_plain_http=settings.allow_plain_http)
    awake.need_command(settings.stay_awake)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The context of the given certificate; None if there is none. Raises `StartError` and
    `CertificateUnusable`."""
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartError("--tls-cert and --tls-key go together.")
    if settings.allow_plain_http:
        raise StartError(
            "With --tls-cert other machines use https only; leave --allow-plain-http out."
        )
    return given_context(certificate.expanduser(), key.expanduser())


def _reading(sources: Sources | None) -> Callable[[], Settings] | None:
    if sources is None:
        return None

    def read() -> Settings:
        settings = settings_from(sources.gather())
        check(settings)
        return settings

    return read


async def serve(
    settings: Settings,
    listeners: list[socket.socket],
    stop: Stop,
    sources: Sources | None = None,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        try:
            core = await stack.enter_async_context(open_core(settings, reread=_reading(sources)))
        except RegistryError as error:
            raise StartError(str(error)) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(f"The router cannot use its folder {settings.home} ({reason}).") from (
                error
            )
        stack.enter_context(reloaded_at_hangup(core.settings, stop.set))
        tune_garbage_collector()
        await Server(core, stop, tls_context(settings)).serve(listeners)


def tune_garbage_collector() -> None:
    """Tunes the garbage collector: objects of the start are permanent, and a request makes few
    cycles. At its default rate it took a twelfth of the time of a busy router."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class Server(QuietServer):
    """A server without signal handlers; `run` handles signals until the registry is closed too."""

    def __init__(self, core: Core, stop: Stop, context: ssl.SSLContext | None = None) -> None:
        callers = Callers(refusal_body, Limits.within(open_files(), _FILES_EACH))
        core.metrics.add_callers(callers)
        entry = None if context is None else Entry(context, callers)
        super().__init__(server_config(core, callers), stop, entry)
        self._has_tls = context is not None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets:
            host = sockets[0].getsockname()[0]
            put(f"router listening on {url_of(host, sockets, tls=self._has_tls)}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancels requests that are still open after the grace period, which then send their
        clients an error."""
        grace = asyncio.get_running_loop().call_later(SHUTDOWN_S, self._end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            grace.cancel()

    def _end_requests(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()


def server_config(core: Core, callers: Callers) -> uvicorn.Config:
    app: Any = build_app(core)
    return uvicorn.Config(
        app,
        http=protocol_of(callers),
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(SHUTDOWN_S + LAST_WORDS_S),
    )


@contextlib.contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Makes SIGINT and SIGTERM set the event, from before the start until after the end."""
    before = {
        which: signal.signal(which, lambda *_: stop.set())
        for which in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def logged(settings: Settings) -> Iterator[None]:
    """Sets up the logs: without a file, request lines go to standard output and everything else to
    standard error. Raises `CannotStart`."""
    with logging_to(settings.logs):
        if settings.log_file is None:
            requests_to_stdout(settings.log_format)
        yield
