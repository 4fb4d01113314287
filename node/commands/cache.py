"""`node-agent cache clear`: deletes stored KV."""

import contextlib
from pathlib import Path

import msgspec
import typer

from node.commands.agent_client import CommandFailed, NotRunning, ServerAddress, posting
from node.commands.configuration import read_settings
from node.engine.cache.disk.home import clear_folder
from node.protocol.lifecycle import PATH_CLEAR_CACHE, ClearedCache
from serving.terminal.output import put

_decode = msgspec.json.Decoder(ClearedCache).decode


def clear_cache(
    home: Path | None, server: ServerAddress, model: str | None, *, local: bool, yes: bool
) -> None:
    """Clears the prefix caches of the agent at `server`, or that of one loaded model. With `local`
    and without a model also deletes the disk tiers of models that are not loaded, or of all models
    if no agent runs. Prints the freed sizes. Raises `CommandFailed`."""
    if not yes:
        what = "all stored KV" if model is None else f"the stored KV of {model}"
        typer.confirm(f"Delete {what}, in memory and on disk?", abort=True)
    local = local and model is None
    cleared = ClearedCache((), 0, 0)
    try:
        body = {} if model is None else {"model": model}
        with posting(server, PATH_CLEAR_CACHE, body) as response:
            cleared = _decode(response.read())
    except NotRunning:
        if not local:
            raise
    if model is not None and not (cleared.models or cleared.skipped):
        raise CommandFailed(
            f"{model} is not loaded, and which files on disk are its own is known once it is; "
            "`node-agent cache clear` deletes those of all models."
        )
    disk_bytes, kept_bytes = cleared.disk_bytes, 0
    if local:
        folder = read_settings({"home": home}).kv_folder
        gone = clear_folder(folder)
        disk_bytes += gone.freed_bytes
        kept_bytes = sum(_tier_bytes(folder / name) for name in gone.busy)
    memory = f"{cleared.memory_bytes / 1e9:.2f} GB of memory"
    put(f"Freed {memory} and {disk_bytes / 1e9:.2f} GB of disk.")
    if cleared.skipped:
        put(
            f"Not cleared: {', '.join(cleared.skipped)}, being loaded or busy. Try again in a "
            "moment."
        )
    if kept_bytes:
        put(
            f"{kept_bytes / 1e9:.2f} GB of disk are not freed: engines of an agent "
            "at another address (give its --url) or of a model that is being loaded use "
            "them."
        )


def _tier_bytes(folder: Path) -> int:
    """Bytes in the folder of a disk tier that an engine uses; 0 if it has been cleared."""
    total_bytes = 0
    for file in folder.glob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            total_bytes += file.stat().st_size
    return total_bytes
