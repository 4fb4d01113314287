"""`node-agent models` and `node-agent rm`."""

from pathlib import Path

import msgspec
import typer
from rich.table import Table

from node.commands.configuration import open_store
from node.errors import UnknownModel
from node.store import ModelEntry
from serving.screen import Screen
from serving.terminal import put, put_json


def list_models(home: Path | None, *, as_json: bool) -> None:
    """Prints the models on disk."""
    store = open_store(home)
    entries = store.list()
    if as_json:
        put_json(msgspec.json.encode([shown(entry) for entry in entries]).decode())
        return
    if not entries:
        put(f"No models in {store.folder}. Get one with `node-agent pull OWNER/NAME`.")
        return
    table = Table("model", "weights", "context", "folder", box=None)
    for entry in entries:
        context = "?" if entry.context_tokens is None else f"{entry.context_tokens:,}"
        size = f"{entry.weight_bytes / 1e9:.2f} GB"
        table.add_row(entry.name, size, context, str(entry.folder))
    Screen(soft_wrap=True).print(table)


def remove_model(home: Path | None, name: str, *, yes: bool) -> None:
    """Deletes a model after a question."""
    store = open_store(home)
    if not yes:
        if store.find(name) is None and not store.is_begun(name):
            near = store.near(name)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UnknownModel(f"There is no model {name!r} on this node.{hint}")
        typer.confirm(f"Delete {name}?", abort=True)
    freed_bytes = store.remove(name)
    put(f"Removed {name}; {freed_bytes / 1e9:.2f} GB freed.")


def shown(entry: ModelEntry) -> dict[str, object]:
    """The entry as `--json` prints it."""
    return {
        "name": entry.name,
        "folder": str(entry.folder),
        "weight_bytes": entry.weight_bytes,
        "context_tokens": entry.context_tokens,
        "kv_bytes_per_token": entry.kv_bytes_per_token,
    }
