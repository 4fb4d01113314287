"""Selects the formats of a model's outputs by its template and vocabulary, or by settings."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from node.parsing.registry import override, reasoning_name, tool_call_name
from node.parsing.selection import Formats, select_formats

_FILES = (
    *("chat_template.jinja", "chat_template.json", "tokenizer_config.json", "tokenizer.json"),
    "added_tokens.json",
)
NO_FORMATS = Formats("none", "none")
"""Formats of a model without a template: plain text."""

Pairs = Sequence[tuple[str, str]]


class ModelFormats:
    """The formats of a node's models."""

    def __init__(self, tool_parsers: Pairs = (), reasoning_parsers: Pairs = ()) -> None:
        """Pairs of a model and a format; an empty model stands for all. Formats are names and
        aliases of the parsers' registry."""
        self._tool_calls = {model: tool_call_name(name) for model, name in tool_parsers}
        self._reasoning = {model: reasoning_name(name) for model, name in reasoning_parsers}

    def of(self, name: str, folder: Path | None) -> Formats:
        """The formats of the model of that name; without a folder, those in the settings. Files are
        read the first time and when they have changed, so call it in a thread."""
        detected = NO_FORMATS if folder is None else _formats_of(folder, _stamp(folder))
        return override(
            detected, _setting_for(self._reasoning, name), _setting_for(self._tool_calls, name)
        )


def _setting_for(names: Mapping[str, str], model: str) -> str:
    return names.get(model) or names.get("", "")


def _stamp(folder: Path) -> tuple[int, ...]:
    """Times of the files that are read; different when one has changed."""
    stamps = []
    for name in _FILES:
        try:
            stamps.append((folder / name).stat().st_mtime_ns)
        except OSError:
            stamps.append(0)
    return tuple(stamps)


@lru_cache(maxsize=512)
def _formats_of(folder: Path, stamp: tuple[int, ...]) -> Formats:
    config = _read(folder / "tokenizer_config.json")
    return select_formats(_template(folder, config), _added_tokens(folder, config))


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, ValueError):
        pass
    found = _read(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(found, list):
        # There may be several templates by name; together they show everything that the model
        # knows.
        found = "\n".join(str(each.get("template", "")) for each in found if isinstance(each, dict))
    return found if isinstance(found, str) else ""


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> frozenset[str]:
    found = set(_read(folder / "added_tokens.json"))
    tables = config.get("added_tokens_decoder")
    entries = list(tables.values()) if isinstance(tables, dict) else []
    if not entries:
        added = _read(folder / "tokenizer.json").get("added_tokens")
        entries = added if isinstance(added, list) else []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str):
            found.add(entry["content"])
    return frozenset(found)


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in the file; empty if there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
