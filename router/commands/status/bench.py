"""`router bench`: load against the fleet, and how fast it responds."""

import asyncio
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import httpx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.commands import console, wording
from router.commands.client import CommandFailed, RouterAccess, broken, not_running
from router.commands.status.screen import rate
from router.commands.tables import Cell
from serving.chat.load import ChatLoad
from serving.chat.stream import ResponseFailed, StreamedChat
from serving.terminal.bars import shown_bars

TOTAL = "all"
_SHOWN = 5
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """The load: so many requests, or requests for so long."""

    model: str
    concurrency: int = 4
    requests: int = 16
    duration_s: float | None = None
    """Instead of a number of requests; those in flight at the end are completed."""
    prompt_tokens: int = 500
    output_tokens: int = 128


@dataclass(slots=True)
class Outcome:
    """The responses, and the failures by their sentences."""

    responses: list[StreamedChat] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """The responses of one node, or all."""

    node: str
    responses: int
    ttft_p50_s: float
    ttft_p95_s: float
    request_tokens_per_s: float | None
    """Median over the responses, from the first token to the last; None if none had two."""
    tokens_per_s: float
    """Tokens of all responses over the whole time."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def run(access: RouterAccess, load: Load, *, as_json: bool, wide: bool = False) -> bool:
    """Measures and prints; True if no request failed. Raises `CommandFailed` if the router does not
    serve the model at all."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with shown_bars(*columns, TimeElapsedColumn()) as bars:
        outcome = asyncio.run(measure(access, load, bars))
    found = figures(outcome)
    if as_json:
        console.print_json(
            {
                "load": asdict(load),
                "wall_s": outcome.wall_s,
                "nodes": [asdict(each) for each in found],
                "failures": dict(outcome.failures),
            }
        )
    else:
        _print(load, outcome, found, wide=wide)
    return not outcome.failures


async def measure(
    access: RouterAccess,
    load: Load,
    bars: Progress,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Outcome:
    """Sends the load. Raises `CommandFailed` if the first request, which loads the model, fails."""
    task = bars.add_task(f"loading {load.model}", total=None)
    client = ChatLoad(access.url, load.model, access.inference_key(), transport)
    outcome = Outcome()
    try:
        await client.calibrate()
        bars.update(
            task,
            description=f"{load.concurrency} at once",
            total=None if load.duration_s else load.requests,
        )
        began_s = time.monotonic()
        left = _Left(load, began_s)

        async def send() -> None:
            while left.take():
                await _one(client, load, outcome)
                bars.advance(task)

        await asyncio.gather(*(send() for _ in range(load.concurrency)))
        outcome.wall_s = time.monotonic() - began_s
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise not_running(access) from error
    except httpx.HTTPError as error:
        raise broken(access, error) from error
    except ResponseFailed as error:
        raise CommandFailed(str(error)) from error
    finally:
        await client.close()
    return outcome


class _Left:
    """The requests that are still to be sent."""

    def __init__(self, load: Load, began_s: float) -> None:
        self._requests = load.requests
        self._end_s = None if load.duration_s is None else began_s + load.duration_s

    def take(self) -> bool:
        """True if one more is to be sent."""
        if self._end_s is not None:
            return time.monotonic() < self._end_s
        self._requests -= 1
        return self._requests >= 0


async def _one(client: ChatLoad, load: Load, outcome: Outcome) -> None:
    """Sends one request; a refusal counts as a failure, and the others go on."""
    try:
        streamed = await client.request(client.story(load.prompt_tokens), load.output_tokens)
        streamed.require_whole()
    except ResponseFailed as error:
        outcome.failures[str(error)] += 1
        # A refusal comes at once: without a pause the rest of the load would be refused, too.
        await asyncio.sleep(_PAUSE_S)
    else:
        outcome.responses.append(streamed)


def figures(outcome: Outcome) -> list[NodeSpeed]:
    """One row for each node, by name, and one for all of them if there are several."""
    nodes = sorted({each.node for each in outcome.responses})
    rows = [
        _figures(node, [each for each in outcome.responses if each.node == node], outcome.wall_s)
        for node in nodes
    ]
    return rows if len(rows) < 2 else [*rows, _figures(TOTAL, outcome.responses, outcome.wall_s)]


def _figures(node: str, responses: Sequence[StreamedChat], wall_s: float) -> NodeSpeed:
    waits_s = sorted(each.wait_s for each in responses)
    rates = [each.tokens_per_s for each in responses if each.tokens > 1 and each.decode_s > 0]
    known = [each for each in rates if each is not None]
    tokens = sum(each.tokens for each in responses)
    return NodeSpeed(
        node=node,
        responses=len(responses),
        ttft_p50_s=percentile(waits_s, 0.5),
        ttft_p95_s=percentile(waits_s, 0.95),
        request_tokens_per_s=statistics.median(known) if known else None,
        tokens_per_s=tokens / max(wall_s, 1e-9),
        prompt_tokens=sum(each.prompt_tokens or 0 for each in responses),
        cached_tokens=sum(each.cached_tokens or 0 for each in responses),
        completion_tokens=tokens,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least of the ordered values that this share of them does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def _print(load: Load, outcome: Outcome, found: list[NodeSpeed], *, wide: bool) -> None:
    if found:
        console.print_table(
            (
                *("Node", ">Responses", ">TTFT p50", ">TTFT p95"),
                *(">Tokens/s each", ">Tokens/s", ">Prompt", ">Cached"),
            ),
            [_cells(each) for each in found],
            ("Cached", "Prompt"),
            wide=wide,
        )
    done = wording.counted(len(outcome.responses), "response")
    console.print_line(
        f"{load.model}: {done} in {outcome.wall_s:.1f} s, {load.concurrency} at once, prompts of "
        f"about {load.prompt_tokens:,} tokens, responses of at most {load.output_tokens:,}."
    )
    for sentence, count in outcome.failures.most_common(_SHOWN):
        console.print_error(f"{wording.counted(count, 'request')} failed: {sentence}", style="red")
    if (more := len(outcome.failures) - _SHOWN) > 0:
        console.print_error(f"{more} further kinds of failures; --json has all.", style="red")


def _cells(row: NodeSpeed) -> tuple[Cell, ...]:
    return (
        row.node or "?",
        f"{row.responses:,}",
        _time(row.ttft_p50_s),
        _time(row.ttft_p95_s),
        rate(row.request_tokens_per_s),
        rate(row.tokens_per_s),
        wording.number(row.prompt_tokens),
        wording.number(row.cached_tokens),
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
