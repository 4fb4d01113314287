"""`node-agent models` and `node-agent rm`."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from rich.table import Table

from node.commands.own_store import open_store
from node.errors import UnknownModel
from node.models.store import BrokenFolder, ModelEntry
from serving.terminal.output import put, put_json
from serving.terminal.screen import Screen


def list_models(home: Path | None, *, as_json: bool) -> None:
    """Prints the models on disk."""
    store = open_store(home)
    here = store.contents()
    if as_json:
        rows = [*map(shown, here.models), *map(shown_broken, here.broken)]
        put_json(msgspec.json.encode(rows).decode())
        return
    if not here.models and not here.broken:
        put(f"No models in {store.folder}. Get one with `node-agent pull OWNER/NAME`.")
        return
    table = Table("model", "weights", "context", "folder", box=None)
    for entry in here.models:
        context = "?" if entry.context_tokens is None else f"{entry.context_tokens:,}"
        size = f"{entry.weight_bytes / 1e9:.2f} GB"
        table.add_row(entry.name, size, context, str(entry.folder))
    for each in here.broken:
        table.add_row(each.name, "broken", "", str(each.folder), style="red")
    Screen(soft_wrap=True).print(table)
    for each in here.broken:
        put(f"{each.name} cannot be served: {each.reason}")
    if here.broken:
        put(advice_on(here.broken))


def remove_model(home: Path | None, name: str, *, yes: bool) -> None:
    """Deletes a model after a confirmation."""
    store = open_store(home)
    if not yes:
        if not store.has(name):
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
        "broken": None,
    }


def shown_broken(each: BrokenFolder) -> dict[str, object]:
    """The same for a broken model, of which nothing else is known."""
    return {"name": each.name, "folder": str(each.folder), "broken": each.reason}


def advice_on(broken: Sequence[BrokenFolder]) -> str:
    """Advice for broken models."""
    names = " or ".join(f"`node-agent rm {each.name}`" for each in broken[:3])
    return f"{names} deletes its files; then it can be pulled or imported again."
