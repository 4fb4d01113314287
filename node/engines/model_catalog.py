"""The models that a node can serve: those in its store, and those in use."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from node.engines.slots import Slots
from node.errors import ModelBroken, UnknownModel
from node.hardware import free_disk_bytes
from node.models.store import BrokenFolder, Contents, ModelEntry, ModelStore

NAME_LIMIT = 200
"""Longest piece of an unknown name that is repeated or compared, in characters."""


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

    def _read(self) -> tuple[Contents, int]:
        return self._store.contents(), free_disk_bytes(self._kv_folder)
