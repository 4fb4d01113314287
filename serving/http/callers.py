"""All callers' connections of one server: how many there may be, and what each of them is told."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.http.refusals import Refusal
from serving.http.timeouts import USUAL, Patience
from serving.seldom import Seldom

_SPARE_SHARE = 8
_LEAST_SPARE_FILES = 64
"""Of the files that a process may have open, kept for everything that is no caller."""
_UNKNOWN = 2048
_UNKNOWN_OF_ONE_ADDRESS = 1024

log = logging.getLogger("mlx_fleet.serving")

Spell = Callable[[Refusal, str], bytes]
"""A refusal as the body of an answer, as the callers of that path read it."""


class Connection(Protocol):
    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How many connections one server holds at once."""

    connections: int = 8192
    descriptor: int = 10_000
    """The number of a file tells how many are open: a connection's may not be higher."""
    unknown: int = _UNKNOWN
    """Of those that have not shown a key."""
    unknown_of_one_address: int = _UNKNOWN_OF_ONE_ADDRESS

    @classmethod
    def within(cls, open_files: int, files_each: int) -> Limits:
        """For a process that may have so many files open, and needs `files_each` to answer one
        caller."""
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
    """Keeps count of the connections of one server.

    Whoever shows no key takes a place from those that do: where there are too many of them the
    oldest is cut off, so that a new caller always gets one.
    """

    def __init__(
        self,
        spell: Spell,
        limits: Limits | None = None,
        patience: Patience = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spell = spell
        self.patience = patience
        self.refused = 0
        """Connections that were one too many for the files that this process may have open."""
        self.cut_off = 0
        """Connections without a key that had to make room for newer ones."""
        self._limits = limits or Limits()
        self._seldom = Seldom(clock)
        self._unknown: OrderedDict[Connection, str] = OrderedDict()
        """Those without a key and their addresses, oldest first."""
        self._of_address: dict[str, OrderedDict[Connection, None]] = {}

    def admit(
        self, connection: Connection, address: str, open_connections: int, descriptor: int
    ) -> bool:
        """Whether a connection that was just made may stay."""
        limits = self._limits
        if open_connections > limits.connections or descriptor > limits.descriptor:
            self.refused += 1
            self._warn(
                "refused",
                f"{open_connections} connections are open, and this process may have no more files "
                "(`ulimit -n`): new callers are refused",
            )
            return False
        same = self._of_address.setdefault(address, OrderedDict())
        same[connection] = None
        self._unknown[connection] = address
        if len(same) > limits.unknown_of_one_address:
            self._cut_off(
                next(iter(same)),
                "of one address",
                f"{address} holds {limits.unknown_of_one_address} connections without a valid key: "
                "its oldest are cut off",
            )
        elif len(self._unknown) > limits.unknown:
            self._cut_off(
                next(iter(self._unknown)),
                "of all",
                f"There are {limits.unknown} connections without a valid key: the oldest are cut "
                "off",
            )
        return True

    def forget(self, connection: Connection) -> None:
        """The connection has shown a key, or has ended."""
        address = self._unknown.pop(connection, None)
        if address is None:
            return
        same = self._of_address[address]
        del same[connection]
        if not same:
            del self._of_address[address]

    def _cut_off(self, connection: Connection, kind: str, reason: str) -> None:
        self.cut_off += 1
        self.forget(connection)
        connection.abort()
        self._warn(kind, reason)

    def _warn(self, kind: str, sentence: str) -> None:
        if self._seldom.due(kind):
            log.warning("%s%s.", sentence, self._seldom.more(kind))
