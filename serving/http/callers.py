"""Limits and counts the client connections of one server."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.http.refusals import Refusal
from serving.http.timeouts import DEFAULT_TIMEOUTS, ClientTimeouts
from serving.log_limiter import LogLimiter

_SPARE_SHARE = 8
_LEAST_SPARE_FILES = 64
"""Open files that are kept for other purposes than client connections: a share of the limit, and at
least this number."""
_UNKNOWN = 2048
_UNKNOWN_OF_ONE_ADDRESS = 1024

log = logging.getLogger("mlx_fleet.serving")

Spell = Callable[[Refusal, str], bytes]
"""Spells a refusal as the body of a response, in the format of that path."""


class AbortableConnection(Protocol):
    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the connections of one server."""

    connections: int = 8192
    descriptor: int = 10_000
    """Highest file descriptor of a connection: descriptors show how many files are open."""
    unknown: int = _UNKNOWN
    """Connections that have not shown a valid key."""
    unknown_of_one_address: int = _UNKNOWN_OF_ONE_ADDRESS

    @classmethod
    def within(cls, open_files: int, files_each: int) -> Limits:
        """The limits for a process that may have so many files open, and needs `files_each` to
        serve one client."""
        spare = max(open_files // _SPARE_SHARE, _LEAST_SPARE_FILES)
        connections = max((open_files - spare) // files_each, 1)
        unknown = min(_UNKNOWN, max(connections // 2, 1))
        return cls(
            connections,
            open_files - spare // 2,
            unknown,
            min(_UNKNOWN_OF_ONE_ADDRESS, max(unknown // 2, 1)),
        )


class Callers:
    """Counts the connections of one server.

    Connections without a valid key are limited in number: if there are too many, the oldest is
    closed, so that a new client always gets one.
    """

    def __init__(
        self,
        spell: Spell,
        limits: Limits | None = None,
        timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spell = spell
        self.timeouts = timeouts
        self.refused = 0
        """Connections refused because they exceeded the limit of open files."""
        self.cut_off = 0
        """Connections without a key that were closed in favor of newer ones."""
        self._limits = limits or Limits()
        self._log_limiter = LogLimiter(clock)
        self._unknown: OrderedDict[AbortableConnection, str] = OrderedDict()
        """Addresses of the connections without a key, oldest first."""
        self._of_address: dict[str, OrderedDict[AbortableConnection, None]] = {}

    def admit(
        self, connection: AbortableConnection, address: str, open_connections: int, descriptor: int
    ) -> bool:
        """True if a new connection may stay."""
        limits = self._limits
        if open_connections > limits.connections or descriptor > limits.descriptor:
            self.refused += 1
            self._warn(
                "refused",
                (
                    f"{open_connections} connections are open, and this process may have no "
                    "more files (`ulimit -n`): new connections are refused"
                ),
            )
            return False
        same = self._of_address.setdefault(address, OrderedDict())
        same[connection] = None
        self._unknown[connection] = address
        if len(same) > limits.unknown_of_one_address:
            self._cut_off(
                next(iter(same)),
                "of one address",
                (
                    f"{address} has {limits.unknown_of_one_address} connections without a "
                    "valid key: its oldest are closed"
                ),
            )
        elif len(self._unknown) > limits.unknown:
            self._cut_off(
                next(iter(self._unknown)),
                "of all",
                (
                    f"There are {limits.unknown} connections without a valid key: the oldest "
                    "are closed"
                ),
            )
        return True

    def forget(self, connection: AbortableConnection) -> None:
        """Removes a connection that has shown a valid key, or has ended."""
        address = self._unknown.pop(connection, None)
        if address is None:
            return
        same = self._of_address[address]
        del same[connection]
        if not same:
            del self._of_address[address]

    def _cut_off(self, connection: AbortableConnection, kind: str, reason: str) -> None:
        self.cut_off += 1
        self.forget(connection)
        connection.abort()
        self._warn(kind, reason)

    def _warn(self, kind: str, sentence: str) -> None:
        if self._log_limiter.due(kind):
            log.warning("%s%s.", sentence, self._log_limiter.suppressed(kind))
