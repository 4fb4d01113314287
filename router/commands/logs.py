"""`router logs`: lines of the logs of router and agents."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from router.api.admin.report_views import LogRow
from router.commands import console
from router.commands.client import AdminClient, read_rows
from serving.terminal.output import put_json

POLL_S = 1.0
"""Seconds between two looks for new lines."""
OWN = "router"
"""The source of the router's own lines, where those of agents have the node's name."""


@dataclass(slots=True)
class _Sources:
    """The state of each log up to the lines that were printed."""

    cursors: dict[str, str] = field(default_factory=dict)
    """By the node's name; empty for the router's own."""
    errors: dict[str, str | None] = field(default_factory=dict)

    def after(self) -> list[str]:
        return [f"{node}:{cursor}" for node, cursor in self.cursors.items()]


def show(
    client: AdminClient, node: str | None, lines: int, *, own: bool, follow: bool, as_json: bool
) -> None:
    """Prints the newest lines, in the order of their times, and with `follow` those that come until
    Ctrl-C."""
    seen = _Sources()
    query = {"node": node, "own": "true" if own else None}
    try:
        while True:
            response = client.get("/logs", **query, lines=lines, after=seen.after())
            _print(read_rows(LogRow, response), seen, as_json=as_json)
            if not follow:
                return
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        if not follow:
            raise


def _print(rows: list[LogRow], seen: _Sources, *, as_json: bool) -> None:
    width = max([len(row.node or OWN) for row in rows], default=0)
    for row in rows:
        _print_state(row, seen)
        if row.error is None:
            seen.cursors[row.node or ""] = row.cursor
    found = [(line.at_s, row.node or OWN, line.text) for row in rows for line in row.lines]
    for at_s, source, text in sorted(found, key=lambda each: each[0]):
        if as_json:
            put_json(json.dumps({"source": source, "at_s": at_s, "line": text}, ensure_ascii=False))
            continue
        for part in text.split("\n"):
            console.print_line(f"{source:<{width}}  {part}" if len(rows) > 1 else part)


def _print_state(row: LogRow, seen: _Sources) -> None:
    """Reports a log that cannot be read, once, and lines that are missing."""
    source = row.node or ""
    if row.error is not None and row.error != seen.errors.get(source):
        console.print_error(f"The log of {row.node or OWN} cannot be read: {row.error}", "red")
    seen.errors[source] = row.error
    if row.has_gap:
        console.print_error(f"Some lines of {row.node or OWN} are left out here.", "dim")
