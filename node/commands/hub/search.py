"""`node-agent search`: MLX models at the Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Column, Table
from rich.text import Text

from node.commands.agent_client import CommandFailed
from node.commands.configuration import read_settings
from node.commands.hub.fit import fits
from node.hardware import read_machine, this_kernel
from node.models.hub_search import HubModel, search_hub
from serving.terminal.bars import progress
from serving.terminal.output import put, put_json, shown
from serving.terminal.screen import Screen
from serving.units import gib

MOST_WORD_CHARS = 200


class SearchResult(msgspec.Struct, frozen=True):
    """A model as `--json` prints it."""

    repo_id: str
    weight_bytes: int | None
    fits: str
    """`yes`, `tight`, `no`, or `unknown`."""
    downloads: int
    likes: int
    task: str
    gated: bool


def search(home: Path | None, words: str, *, limit: int, token: str | None, as_json: bool) -> None:
    """Prints the models whose names have the words. Raises `DownloadError` and `CommandFailed`."""
    words = " ".join(words.split())
    if not words or len(words) > MOST_WORD_CHARS:
        raise CommandFailed(
            "Give words of the model's name, such as `node-agent search qwen3 4bit`."
        )
    settings = read_settings({"home": home})
    limit_bytes = settings.memory_limit_bytes or read_machine(this_kernel()).default_limit_bytes
    with progress(f"searching for {words}"):
        models = search_hub(words, limit, token)
    found = [_found(each, limit_bytes) for each in models]
    if as_json:
        put_json(msgspec.json.encode(found).decode())
        return
    if not found:
        put(f"The hub has no MLX model with {words!r} in its name; try fewer words.")
        return
    Screen().print(_table(found))
    put(f"Models may take {gib(limit_bytes)} here; one that is tight leaves little memory for KV.")
    put(f"`node-agent run {shown(found[0].repo_id)}` chats with one; `node-agent pull` pulls it.")


def _found(model: HubModel, limit_bytes: int) -> SearchResult:
    verdict = fits(model.weight_bytes, limit_bytes)
    return SearchResult(
        model.repo_id,
        model.weight_bytes,
        verdict,
        model.downloads,
        model.likes,
        model.task,
        model.gated,
    )


_STYLES = {"yes": "green", "tight": "yellow", "no": "red", "unknown": ""}


def _table(found: Sequence[SearchResult]) -> Table:
    table = Table(
        Column("model", overflow="fold"),
        Column("size", justify="right", no_wrap=True),
        "fits",
        Column("downloads", justify="right", no_wrap=True),
        Column("likes", justify="right", no_wrap=True),
        box=None,
        pad_edge=False,
    )
    for each in found:
        size = "?" if each.weight_bytes is None else f"{each.weight_bytes / 1e9:.1f} GB"
        verdict = "?" if each.fits == "unknown" else each.fits
        table.add_row(
            f"{shown(each.repo_id)}{' (gated)' if each.gated else ''}",
            size,
            Text(verdict, style=_STYLES[each.fits]),
            short_number(each.downloads),
            short_number(each.likes),
        )
    return table


def short_number(count: int) -> str:
    """A count in at most five characters: 950, 12K, 3.4M."""
    for unit, factor in (("M", 10**6), ("K", 10**3)):
        share = count / factor
        if share >= 0.9995:
            return f"{share:.0f}{unit}" if share >= 9.95 else f"{share:.1f}{unit}"
    return str(count)
