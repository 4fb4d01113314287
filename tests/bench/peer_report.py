"""The tables of `python -m tests.bench.peers --report`."""

from typing import Any

from rich.console import Console
from rich.table import Table

Result = dict[str, Any]
Path = tuple[str, ...]

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
    "gap p99, 4 streams (ms)": ("conc4", "itl_ms", "p99"),
    "gap p99, 16 streams (ms)": ("conc16", "itl_ms", "p99"),
    "memory (MB)": ("single", "rss_mb"),
    "ready after (s)": ("start", "ready_s"),
}


def show(console: Console, results: dict[str, dict[str, Result]]) -> None:
    """A table for each part that has figures, and a line for each item that has none."""
    for part, found in results.items():
        measured = {item: result for item, result in found.items() if "lines" in result}
        rows = ROUTER_ROWS if part == "routers" else SERVER_ROWS
        if measured and part != "setup":
            console.print(table(part, rows, measured))
        for item, result in found.items():
            if "failed" in result:
                console.print(f"{part}: {item}: {result['failed']}", markup=False, highlight=False)
    if not any(results.values()):
        console.print("Nothing has been measured yet.")


def table(part: str, rows: dict[str, Path], measured: dict[str, Result]) -> Table:
    made = Table(title=part, title_justify="left")
    made.add_column("")
    for item in measured:
        made.add_column(item, justify="right")
    for name, path in rows.items():
        cells = [cell(result["lines"], path) for result in measured.values()]
        if any(cells):
            made.add_row(name, *cells)
    made.add_row("load average before", *(f"{result['load']:.1f}" for result in measured.values()))
    made.add_row("date", *(str(result["date"]) for result in measured.values()))
    return made


def cell(lines: list[Result], path: Path) -> str:
    """The value at `path` as text; empty where there is none."""
    phase, *keys = path
    value: Any = next((line for line in lines if line.get("phase") == phase), None)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, list):
        return "/".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
