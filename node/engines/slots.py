"""The slots of all models of a node."""

from collections.abc import Iterator
from pathlib import Path

from node.engines.slot import EngineState, Slot
from node.models.store import ModelEntry

_NOWHERE = Path()


class Slots:
    """Owner of the slots, one for each model folder that was ever requested."""

    def __init__(self) -> None:
        self._by_folder: dict[str, Slot] = {}

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_folder.values())

    def of(self, entry: ModelEntry) -> Slot:
        """Returns the slot of the entry's folder."""
        # A scripted model has no folder; only its name distinguishes it.
        key = entry.name if entry.folder == _NOWHERE else str(entry.folder)
        slot = self._by_folder.get(key)
        if slot is None:
            slot = self._by_folder[key] = Slot(entry)
        else:
            # The folder may have changed, or be requested under another name.
            slot.renew(entry)
        return slot

    def named(self, name: str) -> Slot:
        """Returns the slot that has, or will have, the engine of that name."""
        found = [slot for slot in self if slot.entry.name == name]
        return max(found, key=lambda slot: slot.is_used)

    def used_entries(self) -> list[ModelEntry]:
        """Returns the models that have an engine, or a load or stop in progress or awaited."""
        return [slot.entry for slot in self if slot.is_used]

    def engines(self) -> dict[str, EngineState]:
        """Returns the models that have an engine, by name."""
        return {
            slot.entry.name: EngineState(slot.handle, slot.state, dict(slot.cache_events))
            for slot in self
            if slot.handle is not None
        }
