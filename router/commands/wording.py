"""Formats sizes, times and states for people. Pure."""

import math
from collections.abc import Sequence

from serving import units

_STATE_STYLES = {
    "ready": "green",
    "loading": "yellow",
    "draining": "yellow",
    "on_disk": "",
    "failed": "red",
    "broken": "red",
}


def size(count: int | None) -> str:
    """Formats bytes in binary units: 16.0 GiB, 270 MiB."""
    return "?" if count is None else units.size(count)


def number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def span(seconds: float) -> str:
    """Formats a duration in its largest fitting unit."""
    return units.span(seconds)


def keep_alive_text(seconds: float, before: str = "for ") -> str:
    """Formats a keep-alive; 0 is forever."""
    return before + span(seconds) if seconds else "forever"


def ago(at_s: float, now_s: float) -> str:
    passed_s = now_s - at_s
    return "just now" if passed_s < 2 else f"{span(passed_s)} ago"


def until(at_s: float | None, now_s: float) -> str:
    if at_s is None:
        return "never"
    return f"in {span(math.ceil(at_s - now_s))}" if at_s > now_s else f"{ago(at_s, now_s)}"


def state_text(state: str) -> str:
    return state.replace("_", " ")


def state_style(state: str) -> str:
    return _STATE_STYLES.get(state, "")


def join_some(words: Sequence[str], limit: int = 6) -> str:
    """Joins the first words of a list, with the number of the rest."""
    if len(words) <= limit:
        return ", ".join(words)
    return f"{', '.join(words[:limit])} and {len(words) - limit} more"
