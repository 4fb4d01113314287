"""Accepts the connections of a server with a certificate, and tells TLS from plain HTTP by their
first byte.

Plain HTTP is for programs of this machine: from another one it is refused. What a stranger can
hold open is limited before the handshake, which costs more than everything after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.http.callers import Callers
from serving.log_limiter import LogLimiter
from serving.own_machine import is_loopback

_HANDSHAKE = b"\x16"
"""First byte of a TLS connection; a method of HTTP begins with a letter."""
_AT_ONCE = 64
"""Connections accepted before other work of the event loop goes on."""
_PAUSE_S = 1.0
"""Seconds until the next try if the process has no file left for a connection."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_REFUSED_BYTES = 64 * 1024
_PLAIN_REFUSED = "Plain HTTP is for programs of this machine only; others use https."
_CODE = "tls_required"
log = logging.getLogger("mlx_fleet.serving")


@dataclass(frozen=True, slots=True)
class DoorTimeouts:
    """Timeouts of a connection that has sent no request yet, and of one that ends, in seconds."""

    first_byte_s: float = 75.0
    """The same as for a connection without a request."""
    handshake_s: float = 10.0
    last_bytes_s: float = 120.0
    """For a client to read the end of its response and to say goodbye."""


DEFAULT_DOOR_TIMEOUTS = DoorTimeouts()


def _refusal(advice: str) -> bytes:
    """A response for routers and for clients of either API."""
    message = f"{_PLAIN_REFUSED} {advice}".rstrip()
    error = {"message": message, "type": "invalid_request_error", "code": _CODE}
    body = json.dumps({"message": message, "code": _CODE, "error": error}).encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """The way in which a server admits connections."""

    context: ssl.SSLContext
    callers: Callers
    advice: str = ""
    """Advice for a client that is refused since it speaks plain HTTP."""
    timeouts: DoorTimeouts = DEFAULT_DOOR_TIMEOUTS
    is_near: Callable[[str], bool] = is_loopback
    """Tells if an address belongs to this machine."""


class ArrivedConnection(asyncio.Protocol):
    """A client's connection behind a door."""

    before_made: Callable[[], None] | None = None
    """Called at the beginning of `connection_made`."""


class _Arrival:
    """A connection of which it is not known yet what it speaks."""

    def __init__(self, door: Door, connected: socket.socket, address: str) -> None:
        self.connected = connected
        self.address = address
        self.task: asyncio.Task[None] | None = None
        self.is_aborted = False
        self._door = door
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(door.timeouts.first_byte_s, self.abort)
        loop.add_reader(connected, self._on_readable)

    def abort(self) -> None:
        self.is_aborted = True
        if self.task is not None:
            # The handshake ends by this as if the client had left.
            with contextlib.suppress(OSError):
                self.connected.shutdown(socket.SHUT_RDWR)
            return
        self._end_waiting()
        self.connected.close()
        self._door.forget(self)

    def _end_waiting(self) -> None:
        self._late.cancel()
        asyncio.get_running_loop().remove_reader(self.connected)

    def _on_readable(self) -> None:
        try:
            first = self.connected.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.abort()
            return
        self._end_waiting()
        if first != _HANDSHAKE and not self._door.is_near(self.address):
            self._refuse()
            return
        begun = self._door.connect(self, is_tls=first == _HANDSHAKE)
        self.task = asyncio.get_running_loop().create_task(begun)

    def _refuse(self) -> None:
        with contextlib.suppress(OSError):
            # What is left unread would turn the end of the connection into a reset.
            self.connected.recv(_REFUSED_BYTES)
            self.connected.send(self._door.refusal)
        self.connected.close()
        self._door.forget(self)


class Door:
    """The listening side of one server; has the methods of `asyncio.Server` that uvicorn needs."""

    def __init__(
        self,
        entry: Entry,
        make: Callable[[], ArrivedConnection],
    ) -> None:
        self.timeouts = entry.timeouts
        self.is_near = entry.is_near
        self.refusal = _refusal(entry.advice)
        self._context = entry.context
        self._callers = entry.callers
        self._make = make
        self._arrivals: set[_Arrival] = set()
        self._listeners: Sequence[socket.socket] = ()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._log_limiter = LogLimiter()

    def open(self, listeners: Sequence[socket.socket]) -> None:
        self._listeners = listeners
        for listener in listeners:
            listener.settimeout(0)
            self._watch(listener)

    def close(self) -> None:
        """Accepts no further connections, and drops those that have sent nothing."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            if listener.fileno() >= 0:
                loop.remove_reader(listener)
                # Else the kernel would go on accepting connections that nobody serves.
                listener.close()
        self._listeners = ()
        for pause in self._pauses.values():
            pause.cancel()
        for arrival in list(self._arrivals):
            arrival.abort()

    async def wait_closed(self) -> None:
        tasks = {each.task for each in self._arrivals if each.task is not None}
        if tasks:
            await asyncio.wait(tasks)

    # --- for an arrival ---

    async def connect(self, arrival: _Arrival, *, is_tls: bool) -> None:
        """Makes it a client's connection."""
        loop = asyncio.get_running_loop()
        limits = self.timeouts
        if arrival.is_aborted:  # before this task began
            arrival.connected.close()
            self.forget(arrival)
            return

        def make() -> ArrivedConnection:
            connection = self._make()
            # The connection is counted from now on, and may not be counted twice.
            connection.before_made = lambda: self.forget(arrival)
            return connection

        try:
            if is_tls:
                await loop.connect_accepted_socket(
                    make,
                    arrival.connected,
                    ssl=self._context,
                    ssl_handshake_timeout=limits.handshake_s,
                    ssl_shutdown_timeout=limits.last_bytes_s,
                )
            else:
                await loop.connect_accepted_socket(make, arrival.connected)
        except OSError:  # the handshake failed; the transport closes the connection
            pass
        finally:
            self.forget(arrival)

    def forget(self, arrival: _Arrival) -> None:
        self._arrivals.discard(arrival)
        self._callers.forget(arrival)

    # --- accepting ---

    def _watch(self, listener: socket.socket) -> None:
        self._pauses.pop(listener, None)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connected, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._pause(listener, error)
                return
            connected.settimeout(0)
            self._let_in(connected, str(address[0]))

    def _let_in(self, connected: socket.socket, address: str) -> None:
        arrival = _Arrival(self, connected, address)
        self._arrivals.add(arrival)
        # Its protocol counts all that are open, and has a response for one that is too many.
        if not self._callers.admit(arrival, address, len(self._arrivals), connected.fileno()):
            arrival.abort()

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        if self._log_limiter.due("no room"):
            log.error("No connection can be accepted (%s); trying again.", error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._pauses[listener] = loop.call_later(_PAUSE_S, self._watch, listener)
