"""Tickets by which peers copy models from this node, each for one model. They expire."""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.errors import BadRequest, NodeError, ShuttingDown, UnknownPath, WrongTicket
from node.models.manifest import Manifests
from node.models.model_files import read_source
from node.models.saved_hashes import HashingStopped
from node.models.store import ModelEntry, ModelStore
from node.protocol.lifecycle import ManifestFile, Share

TICKET_S = 900.0
"""Seconds for which a ticket is valid after its last use."""
TICKET_BYTES = 32


@dataclass(slots=True)
class _Ticket:
    entry: ModelEntry
    paths: frozenset[str]
    expires_s: float


class Shares:
    """Owner of the tickets. They are in memory only, so that the agent's end voids them."""

    def __init__(self, store: ModelStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifests = Manifests(store.folder)
        self._clock = clock
        self._tickets: dict[str, _Ticket] = {}
        self._hashing: dict[str, asyncio.Lock] = {}
        """Locks by model: hashing reads all of it, so only one task at a time may do it."""
        self._stopped = threading.Event()

    async def share(self, entry: ModelEntry) -> Share:
        """A ticket for the model. The first call reads the whole model. Raises `BadRequest` for a
        model without files, `ShuttingDown`, or `NodeError` if its files cannot be read."""
        if entry.folder == Path():
            raise BadRequest(f"{entry.name} has no files that could be copied.", param="model")
        async with self._hashing.setdefault(entry.name, asyncio.Lock()):
            files = await asyncio.to_thread(self._files, entry)
        source = await asyncio.to_thread(read_source, entry.folder)
        self._drop_expired()
        ticket = secrets.token_urlsafe(TICKET_BYTES)
        paths = frozenset(file.path for file in files)
        self._tickets[ticket] = _Ticket(entry, paths, self._clock() + TICKET_S)
        return Share(ticket, source, files)

    def file(self, ticket: str, model: str, path: str) -> Path:
        """The file that the ticket's owner may read. Raises `WrongTicket`, or `UnknownPath` for a
        file that the manifest does not name."""
        self._drop_expired()
        found = self._tickets.get(ticket)
        if found is None or found.entry.name != model:
            raise WrongTicket
        found.expires_s = self._clock() + TICKET_S
        file = found.entry.folder / path
        # The model may have been removed since.
        if path not in found.paths or not file.is_file():
            raise UnknownPath(f"{model} has no such file to copy.")
        return file

    def close(self) -> None:
        """Stops any hashing and voids all tickets."""
        self._stopped.set()
        self._tickets.clear()

    def _files(self, entry: ModelEntry) -> tuple[ManifestFile, ...]:
        try:
            return self._manifests.of(entry, self._stopped.is_set)
        except HashingStopped:
            raise ShuttingDown from None
        except OSError as error:
            raise NodeError(f"The files of {entry.name} cannot be read: {error}.") from error

    def _drop_expired(self) -> None:
        now_s = self._clock()
        for ticket in [key for key, found in self._tickets.items() if found.expires_s <= now_s]:
            del self._tickets[ticket]
