"""The tables of `python -m tests.bench.peers --report`."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figures import median
from tests.bench.peer_bars import BARS, Line, Path, Verdict, judge, values

Result = dict[str, Any]

ROUTER_ROWS: dict[str, Path] = {
    "added latency p50, 1 connection (ms)": ("lat1", "added_p50_ms"),
    "added TTFT p50, 1 connection (ms)": ("lat1s", "added_ttft_p50_ms"),
    "requests/s, 64 connections": ("rps64", "rps"),
    "CPU per request, small body (us)": ("rps64", "router_us_per_req"),
    "CPU per request, 32 KB body (us)": ("rps64_32k", "router_us_per_req"),
    "CPU per chunk, 64 streams of 10 ms (us)": ("stream64", "router_us_per_chunk"),
    "CPU per chunk, burst (us)": ("burst64", "router_us_per_chunk"),
    "chunks/s, burst": ("burst64", "chunks_s"),
    "gap p50, 16 streams of 10 ms (ms)": ("itl16", "itl_ms", "p50"),
    "gap p99, 16 streams of 10 ms (ms)": ("itl16", "itl_ms", "p99"),
    "prefix hit rate over 2 nodes": ("sessions", "hit_rate"),
    "split of the sessions": ("sessions", "split"),
    "memory (MB)": ("burst64", "rss_mb"),
    "ready after (s)": ("start", "ready_s"),
}
SERVER_ROWS: dict[str, Path] = {
    "tokens/s, 1 stream": ("single", "output_tok_s"),
    "tokens/s, 4 streams": ("conc4", "output_tok_s"),
    "tokens/s, 16 streams": ("conc16", "output_tok_s"),
    "tokens per CPU second, 1 stream": ("single", "tok_per_cpu_s"),
    "tokens per CPU second, 4 streams": ("conc4", "tok_per_cpu_s"),
    "tokens per CPU second, 16 streams": ("conc16", "tok_per_cpu_s"),
    "TTFT p50, 1 stream (ms)": ("single", "ttft_ms", "p50"),
    "prompt of 2,000 tokens, cold (ms)": ("long_cold", "ttft_ms", "p50"),
    "the same again (ms)": ("long_repeat", "ttft_ms", "p50"),
    "3 sessions of 3 turns (s)": ("sessions", "wall_s"),
    "6,000 cold tokens beside 3 streams: worst gap (ms)": ("interfere", "worst_gap_ms"),
    "6,000 cold tokens beside 3 streams: TTFT (ms)": ("interfere", "long_ttft_ms"),
    "gap p99, 4 streams (ms)": ("conc4", "itl_ms", "p99"),
    "gap p99, 16 streams (ms)": ("conc16", "itl_ms", "p99"),
    "memory after 1 stream (MB)": ("single", "rss_mb"),
    "ready after (s)": ("start", "ready_s"),
}
REPLAY_ROWS: dict[str, Path] = {
    "prefill (s)": ("replay", "prefill_s"),
    "reused share of the prompts": ("replay", "share"),
    "ideal share": ("replay", "ideal_share"),
}
ROWS = {"routers": ROUTER_ROWS, "replay": REPLAY_ROWS, "replay-16": REPLAY_ROWS}
"""The rows of the parts that have others than `SERVER_ROWS`."""


def server_of(item: str) -> str:
    """The item without its round or group."""
    return item.partition(".")[0]


def show(console: Console, results: dict[str, dict[str, Result]]) -> None:
    """For each part that has figures a table and the bars; a line for each failure."""
    for part, found in results.items():
        measured = by_server(found)
        if measured and part != "setup":
            console.print(table(part, ROWS.get(part, SERVER_ROWS), measured))
            verdicts = judge(BARS.get(part, ()), lines_of(measured))
            if verdicts:
                console.print(bars_table(part, verdicts))
        for text in failures(found):
            console.print(f"{part}: {text}", markup=False, highlight=False)
    if not any(results.values()):
        console.print("Nothing has been measured yet.")


def by_server(found: dict[str, Result]) -> dict[str, list[Result]]:
    """The results that have figures."""
    servers: dict[str, list[Result]] = {}
    for item, result in found.items():
        if "lines" in result:
            servers.setdefault(server_of(item), []).append(result)
    return servers


def lines_of(measured: dict[str, list[Result]]) -> dict[str, list[Line]]:
    return {
        server: [line for result in results for line in result["lines"]]
        for server, results in measured.items()
    }


def failures(found: dict[str, Result]) -> Iterable[str]:
    for item, result in found.items():
        if "failed" in result:
            yield f"{item}: {result['failed']}"
        for line in result.get("lines", ()):
            if "failed" in line or "note" in line:
                yield f"{item}: {line['phase']}: {line.get('failed') or line['note']}"


def table(part: str, rows: dict[str, Path], measured: dict[str, list[Result]]) -> Table:
    made = Table(title=part, title_justify="left")
    made.add_column("")
    for server in measured:
        made.add_column(server, justify="right")
    lines = lines_of(measured)
    for name, path in rows.items():
        cells = [cell(values(lines[server], path)) for server in measured]
        if any(cells):
            made.add_row(name, *cells)
    loads = [cell([result["load"] for result in results]) for results in measured.values()]
    made.add_row("load average before", *loads)
    made.add_row("date", *(str(results[-1]["date"]) for results in measured.values()))
    return made


def cell(found: list[Any]) -> str:
    """The value as text, of several numbers the median and the range; empty of none."""
    if not found:
        return ""
    if isinstance(found[-1], list):
        return "/".join(map(str, found[-1]))
    if isinstance(found[-1], str) or len(found) == 1:
        return number(found[-1])
    return f"{number(median(found))} [{number(min(found))}-{number(max(found))}]"


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bars_table(part: str, verdicts: list[Verdict]) -> Table:
    made = Table(title=f"{part}: ours against the best peer", title_justify="left")
    for name in ("", "ours", "best peer", "", "ratio", "bar", ""):
        made.add_column(name, justify="left" if name == "" else "right")
    for verdict in verdicts:
        sign = "≥" if verdict.bar.at_least else "≤"
        made.add_row(
            verdict.bar.what,
            f"{verdict.ours:.4g}",
            f"{verdict.theirs:.4g}",
            verdict.peer,
            f"{verdict.ratio:.3f}",
            f"{sign} {verdict.bar.ratio:g}",
            "[green]pass[/]" if verdict.passed else "[red]miss[/]",
        )
    return made
