"""The models that a node can serve: those in its store, and those in use."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

from node.engines.slots import Slots
from node.errors import ModelBroken, UnknownModel
from node.hardware import free_disk_bytes
from node.models.store import BrokenFolder, Contents, ModelEntry, ModelStore
from serving.short_names import ShortNames, ambiguous

NAME_LIMIT = 200
"""Longest piece of an unknown name that is repeated or compared, in characters."""

FRESH_S = 1.0
"""A name that is not known is searched on disk, unless that was read so recently."""


class ModelCatalog:
    """Owner of the models' names, as last read from the store."""

    def __init__(
        self,
        store: ModelStore,
        kv_folder: Path,
        slots: Slots,
        on_change: Callable[[], None],
        on_read: Callable[[], None],
    ) -> None:
        """`on_change` is called if a `refresh` found other models, `on_read` after each one."""
        self.entries: dict[str, ModelEntry] = {}
        """By name."""
        self.broken: tuple[BrokenFolder, ...] = ()
        """Models on disk that cannot be served."""
        self.disk_free_bytes = 0
        """Free bytes of the disk that KV is written to."""
        self._store = store
        self._kv_folder = kv_folder
        self._slots = slots
        self._on_change = on_change
        self._on_read = on_read
        self._short: tuple[frozenset[str], ShortNames] = frozenset(), ShortNames(())
        """The names that were needed last, and what is short for them."""
        self._read_s = -math.inf
        """When the store was read last."""
        self._reading = asyncio.Lock()
        """Serializes reads of the disk, so that an older result never replaces a newer one."""

    async def refresh(self) -> None:
        """Reads the store again."""
        async with self._reading:
            here, self.disk_free_bytes = await asyncio.to_thread(self._read)
            # A folder that has the name of a model in use waits until that model is unloaded.
            used = self._slots.used_entries()
            before = (self.entries.keys(), self.broken)
            self.entries = {entry.name: entry for entry in (*here.models, *used)}
            self.broken = tuple(each for each in here.broken if each.name not in self.entries)
        self._read_s = time.monotonic()
        if before != (self.entries.keys(), self.broken):
            self._on_change()
        self._on_read()

    async def find(self, name: str) -> ModelEntry:
        """Returns the model of that name. Raises `ModelBroken`, or `UnknownModel` with similar
        names."""
        entry = self.entries.get(name)
        if entry is None:
            await self.refresh()
            entry = self.entries.get(name)
        if entry is not None:
            return entry
        for each in self.broken:
            if each.name == name:
                raise ModelBroken(f"The model {name!r} cannot be served: {each.reason}")
        near = await asyncio.to_thread(self._store.near, name[:NAME_LIMIT])
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UnknownModel(f"There is no model {name[:NAME_LIMIT]!r} on this node.{hint}")

    async def meant(self, name: str) -> str:
        """Returns the model that a client means by a name, whole or short; the name itself if there
        is none. Raises `UnknownModel` for a short name of several."""
        if name not in self.entries and time.monotonic() - self._read_s > FRESH_S:
            # The whole name of a model that has just come is not short for another one.
            await self.refresh()
        if name in self.entries:
            return name
        names = frozenset((*self.entries, *(each.name for each in self.broken)))
        of, short = self._short
        if of != names:
            short = ShortNames(names)
            self._short = names, short
        found = short.find(name)
        if len(found) > 1 and name not in found:
            raise UnknownModel(ambiguous(name, found))
        return found[0] if len(found) == 1 else name

    def _read(self) -> tuple[Contents, int]:
        return self._store.contents(), free_disk_bytes(self._kv_folder)
