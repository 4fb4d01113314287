"""`node-agent bench`: a table of measurements that can be compared with other servers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from node.commands.agent_client import CommandFailed, NotRunning, ServerAddress, print_progress
from node.commands.bench_load import BenchClient, Repeat, Sessions, Stall, Streams
from serving.terminal.bars import shown_bars
from serving.terminal.output import put, put_json
from serving.terminal.screen import Screen

STREAMS = (1, 4, 8, 16)
Result = Streams | Repeat | Stall | Sessions


@dataclass(frozen=True, slots=True)
class BenchSizes:
    """Sizes of prompts and responses in tokens."""

    output: int = 128
    prompt: int = 2000
    long_prompt: int = 6000
    long_output: int = 2048


QUICK = BenchSizes(output=32, prompt=500, long_prompt=1500, long_output=1024)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement: a result, or a sentence with the reason why there is none."""

    name: str
    result: Result | None
    error: str | None


def bench(model: str, server: ServerAddress, *, quick: bool, as_json: bool) -> bool:
    """Measures and prints; True if all measurements succeeded. Raises `CommandFailed` if the server
    does not serve the model at all."""
    began_s = time.monotonic()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with shown_bars(*columns) as bars:
        found = asyncio.run(
            measure(BenchClient(server, model), QUICK if quick else BenchSizes(), bars)
        )
    total_s = time.monotonic() - began_s
    if as_json:
        put_json(msgspec.json.encode(_plain(model, server, found, total_s)).decode())
    else:
        Screen(soft_wrap=True).print(table(f"{model} at {server.url}", found))
        put(f"It took {total_s:.0f} s.")
    return all(each.error is None for each in found)


async def measure(client: BenchClient, sizes: BenchSizes, bars: Progress) -> list[Measurement]:
    """All measurements, one after the other; one that fails has an error as its result. Raises
    `CommandFailed`."""
    found: list[Measurement] = []
    plan = list(_plan(client, sizes))
    bar = bars.add_task("load", total=len(plan))
    try:
        await client.calibrate()
        for name, ask in plan:
            bars.update(bar, completed=len(found), description=name)
            print_progress(bars, f"Measurement {len(found) + 1} of {len(plan)}: {name}.")
            try:
                found.append(Measurement(name, await ask(), None))
            except NotRunning:
                raise
            except CommandFailed as exc:
                found.append(Measurement(name, None, exc.message))
            bars.update(bar, completed=len(found))
    finally:
        await client.close()
    return found


def _plan(
    client: BenchClient, sizes: BenchSizes
) -> Iterator[tuple[str, Callable[[], Awaitable[Result]]]]:
    """The measurements by name."""
    for count in STREAMS:
        name = f"{count} streams" if count > 1 else "1 stream"
        yield name, partial(client.streams, count, sizes.output)
    yield "prompt and repeat", partial(client.repeat, sizes.prompt)
    stall = partial(client.stall, 3, sizes.long_output, sizes.long_prompt)
    yield "long prompt beside 3 streams", stall
    yield "3 sessions of 3 turns", partial(client.sessions, 3, 3, sizes.prompt, sizes.output // 4)


def table(title: str, found: list[Measurement]) -> Table:
    """The measurements for people: one line for each figure."""
    shown = Table(title=Text(title), box=None, show_header=False, title_justify="left")
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    for each in found:
        if each.result is None:
            # Plain text, since a server's message may contain rich's markup.
            shown.add_row(each.name, "failed", Text(each.error or ""))
        else:
            for row in _rows(each.name, each.result):
                shown.add_row(*row)
    return shown


def _rows(name: str, result: Result) -> Iterator[tuple[str, str, str]]:
    match result:
        case Streams():
            ttft = f"TTFT p50 {_time(result.ttft_p50_s)}"
            yield name, f"{result.tokens_per_s:.1f} tokens/s", ttft
        case Repeat():
            prompt = f"{result.prompt_tokens:,} tokens"
            yield "cold prompt", _time(result.cold_ttft_s), f"TTFT, {prompt}"
            yield "repeated prompt", _time(result.repeat_ttft_s), f"TTFT, {prompt}"
        case Stall():
            prompt = f"{result.prompt_tokens:,} tokens"
            gap, when = "not measured", f"the streams had ended before {prompt} were prefilled"
            if result.worst_gap_s is not None:
                gap = _time(result.worst_gap_s)
                when = f"longest silence while {prompt} are prefilled"
            yield "worst gap of 3 streams", gap, when
            yield "the long prompt", _time(result.ttft_s), "TTFT"
        case Sessions():
            share = "cached share unknown"
            if result.cached_tokens is not None:
                share = f"{result.cached_tokens / max(result.prompt_tokens, 1):.0%} of "
                share += f"{result.prompt_tokens:,} prompt tokens cached"
            yield name, _time(result.wall_s), share


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _plain(
    model: str, server: ServerAddress, found: list[Measurement], total_s: float
) -> dict[str, Any]:
    measurements = {each.name: asdict(each) for each in found}
    return {"model": model, "url": server.url, "total_s": total_s, "measurements": measurements}
