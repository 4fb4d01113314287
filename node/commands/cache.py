"""`node-agent cache clear`."""

from pathlib import Path

import msgspec
import typer

from node.commands.agent_client import NotRunning, Place, posting
from node.commands.configuration import read_settings
from node.engine.cache.disk_home import clear_folder
from node.protocol.messages import PATH_CLEAR_CACHE, ClearedCache

_decode = msgspec.json.Decoder(ClearedCache).decode


def clear_cache(home: Path | None, place: Place, *, local: bool, yes: bool) -> None:
    """Has the agent at `place` forget all stored KV; with `local` also deletes the files of models
    that are not loaded, or of all of them where no agent runs. Prints what was freed. Raises
    `CommandFailed`."""
    if not yes:
        typer.confirm("Forget all stored KV, in memory and on disk?", abort=True)
    memory_bytes = disk_bytes = 0
    try:
        with posting(place, PATH_CLEAR_CACHE, {}) as response:
            cleared = _decode(response.read())
        memory_bytes, disk_bytes = cleared.memory_bytes, cleared.disk_bytes
    except NotRunning:
        if not local:
            raise
    if local:
        folder = read_settings({"home": home}).kv_folder
        # What engines use is left alone: they have cleared it, or belong to another agent.
        disk_bytes += clear_folder(folder).freed_bytes
    print(f"Freed {memory_bytes / 1e9:.2f} GB of memory and {disk_bytes / 1e9:.2f} GB of disk.")
