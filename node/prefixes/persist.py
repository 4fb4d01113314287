"""Saves what a digest knows of one engine's disk tier for the next engine of the model."""

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable
from pathlib import Path

from node.models.store import ModelEntry
from node.prefixes.digest import PrefixDigest
from node.prefixes.saved_positions import SavedPositions, load_positions, prompt_key, save_positions

SAVE_S = 30.0
"""Seconds between two saves: what an agent that is killed may lose."""
PIECE_POSITIONS = 4096
"""Positions that are restored at a time, so that no stream stalls."""

logger = logging.getLogger(__name__)


class PositionSaver:
    """Saves and restores the positions of one loaded model."""

    def __init__(self, digest: PrefixDigest, folder: Path, on_restored: Callable[[], None]) -> None:
        """`folder`: the disk tier's. `on_restored` is called when the digest has changed."""
        self._digest = digest
        self._folder = folder
        self._on_restored = on_restored
        self._has_events = asyncio.Event()
        self._closed = asyncio.Event()

    def on_events(self) -> None:
        """The digest has had events from the engine. The first ones are those of the entries on
        disk."""
        self._has_events.set()

    def close(self) -> None:
        """Makes `run` save the last changes and end."""
        self._closed.set()
        self._has_events.set()

    async def run(self, entry: ModelEntry, version: str) -> None:
        """Restores the saved positions, then saves all changes until `close`."""
        try:
            key = await asyncio.to_thread(
                prompt_key, entry.folder, entry.defaults, version, datetime.date.today()
            )
        except OSError as error:
            logger.warning(
                "The prefixes on disk of %s are reported only after their use: %s",
                entry.name,
                error,
            )
            return
        saved = await asyncio.to_thread(load_positions, self._folder, key)
        if saved:
            await self._has_events.wait()
            await self._restore(saved)
        is_open = True
        while is_open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), SAVE_S)
            is_open = not self._closed.is_set()
            if self._digest.has_unsaved:
                await asyncio.to_thread(save_positions, self._folder, key, self._digest.saved())

    async def _restore(self, saved: list[SavedPositions]) -> None:
        entries = self._digest.files()
        count = 0
        for each in saved:
            if each.file in entries:
                self._digest.restore(entries[each.file], each)
                count += len(each.hashes)
            if count >= PIECE_POSITIONS:
                count = 0
                self._on_restored()
                await asyncio.sleep(0)
        self._on_restored()
