"""The fleet on one screen, for `router status` and `router top`."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from router.api.admin.report_views import LoadedRow, StatusRow
from router.api.admin.views import NodeRow
from router.commands import wording
from router.commands.nodes import reached
from router.commands.status.warnings import hint, warnings
from router.commands.tables import Cell, Contents, drawn, lay_out
from serving import units
from serving.terminal.output import shown


def screen(status: StatusRow, url: str, width: int) -> list[RenderableType]:
    """The whole screen for a window of so many characters."""
    parts: list[RenderableType] = [
        _line(f"Router {status.version} at {url}"),
        _line(_figures(status), "bold"),
    ]
    if status.nodes:
        parts += _table(_nodes(status), width)
    if status.loaded:
        parts += _table(loaded_table(status), width)
    parts += [_line(line) for line in queue_lines(status)]
    parts += [_line(each.line, each.style) for each in warnings(status)]
    if next_step := hint(status):
        parts.append(_line(next_step))
    return parts


def loaded_table(status: StatusRow) -> Contents:
    """The models in memory by node."""
    return Contents(
        ("Loaded model", "Node", ">Memory", ">Requests", ">Tokens/s", "Kept idle"),
        [_loaded_cells(row) for row in status.loaded],
    )


def queue_lines(status: StatusRow) -> Iterator[str]:
    for row in status.queue:
        yield (
            f"Waiting for {row.model} ({row.priority}): {row.waiting}, the oldest for "
            f"{wording.span(row.oldest_s)}"
        )


def rate(tokens_per_s: float | None) -> str:
    """Formats tokens per second; empty if they are unknown."""
    if tokens_per_s is None:
        return ""
    return (
        f"{tokens_per_s:,.0f}" if tokens_per_s >= 10 or not tokens_per_s else f"{tokens_per_s:.1f}"
    )


def _figures(status: StatusRow) -> str:
    up = sum(row.reachable for row in status.nodes)
    waiting = sum(row.waiting for row in status.queue)
    return " · ".join(
        (
            f"{up} of {wording.counted(len(status.nodes), 'node')} reachable",
            f"{wording.counted(status.in_flight, 'request')} running",
            f"{waiting:,} waiting",
            f"{rate(status.decode_tokens_per_s)} tokens/s",
            f"prefill {rate(status.prefill_tokens_per_s)}",
        )
    )


def _nodes(status: StatusRow) -> Contents:
    return Contents(
        ("Node", "State", "Chip", ">Memory used", ">Requests", ">Tokens/s"),
        [_node_cells(row, status) for row in status.nodes],
        ("Chip",),
    )


def _node_cells(row: NodeRow, status: StatusRow) -> tuple[Cell, ...]:
    rates = [each.decode_tokens_per_s for each in status.loaded if each.node == row.name]
    known = [each for each in rates if each is not None]
    words, style = reached(row)
    memory = ""
    if row.memory_budget_bytes:
        used, most = row.memory_leased_bytes or 0, row.memory_budget_bytes
        memory = f"{units.gib(used)} of {units.gib(most)}"
    return (
        row.name,
        Text(words, style=style),
        row.chip or row.kind,
        memory,
        str(row.in_flight),
        rate(sum(known)) if known else "",
    )


def _loaded_cells(row: LoadedRow) -> tuple[Cell, ...]:
    at_work = min(row.running, row.max_rows)
    waiting = row.running + row.waiting - at_work
    return (
        row.model,
        row.node,
        wording.size(row.memory_bytes),
        f"{at_work} + {waiting} wait" if waiting else str(at_work),
        rate(row.decode_tokens_per_s),
        _kept(row),
    )


def _kept(row: LoadedRow) -> Text:
    """Describes how long the model stays in memory."""
    if row.state != "ready":
        done = "" if row.progress is None else f" {row.progress:.0%}"
        return Text(wording.state_text(row.state) + done, style=wording.state_style(row.state))
    if row.pinned:
        return Text("pinned")
    if row.unload_in_s is not None:
        return Text(f"{wording.span(row.unload_in_s)} more")
    if row.keep_alive_s is None:
        return Text("")
    return Text(wording.keep_alive_text(row.keep_alive_s, ""))


def _table(contents: Contents, width: int) -> list[RenderableType]:
    return [drawn(lay_out(contents, width))]


def _line(text: str, style: str = "") -> Text:
    return Text(shown(text), style=style)
