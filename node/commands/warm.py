"""`node-agent warm`."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from node.agent.warm_prompts import (
    Body,
    WarmProgress,
    WarmReport,
    WarmResult,
    check_body,
    decode_report,
    read_bodies,
)
from node.commands.agent_client import CommandFailed, ServerAddress, posting, print_progress
from node.errors import StartError
from node.protocol.messages import PATH_WARM
from serving.terminal.bars import shown_bars
from serving.terminal.output import put_json
from serving.terminal.screen import Screen


class Warmed(msgspec.Struct, frozen=True):
    """A prompt of the file, and the result of warming it."""

    number: int
    """Number in the file, from 1."""
    model: str
    tokens: int
    cached_tokens: int
    seconds: float
    error: str | None


def warm_prompts(file: Path, model: str | None, server: ServerAddress, *, as_json: bool) -> bool:
    """Prefills and pins the prompts of the file at the agent, and prints the results; True if all
    of them are warm. Raises `StartError` and `CommandFailed`."""
    bodies = read_bodies(file)
    if not bodies:
        raise StartError(f"{file} contains no requests.")
    models = [model or _model(body, number) for number, body in enumerate(bodies, 1)]
    for number, (body, name) in enumerate(zip(bodies, models, strict=True), 1):
        check_body(file, number, body, name)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with shown_bars(*columns) as bars:
        warmed = _show(bars, len(bodies), _warm(server, bodies, models))
    if as_json:
        put_json(msgspec.json.encode(warmed).decode())
    else:
        _print_table(warmed)
    return all(each.error is None for each in warmed)


def _show(bars: Progress, count: int, reports: Iterator[WarmProgress | Warmed]) -> list[Warmed]:
    """The results, shown as a bar that also moves within a prompt, or as lines."""
    warmed: list[Warmed] = []
    bar = bars.add_task(f"prompt 1 of {count}", total=count)
    for each in reports:
        if isinstance(each, WarmProgress):
            share = each.done_tokens / max(each.total_tokens, 1)
            bars.update(bar, completed=len(warmed) + share)
            continue
        warmed.append(each)
        number = min(len(warmed) + 1, count)
        bars.update(bar, completed=len(warmed), description=f"prompt {number} of {count}")
        what = each.error or f"{each.tokens:,} tokens in {each.seconds:.2f} s"
        print_progress(bars, f"Prompt {each.number} of {count}: {what.rstrip('.')}.")
    return warmed


def _model(body: Body, number: int) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise StartError(f"Request {number} names no model; add --model.")
    return model


def _warm(
    server: ServerAddress, bodies: Sequence[Body], models: Sequence[str]
) -> Iterator[WarmProgress | Warmed]:
    """Sends one command for each run of prompts of the same model."""
    first = 0
    for model, run in itertools.groupby(models):
        count = len(list(run))
        requests = bodies[first : first + count]
        command = {"model": model, "requests": requests}
        done = 0
        with posting(server, PATH_WARM, command) as response:
            for line in response.iter_lines():
                report = _decode(line)
                if isinstance(report, WarmProgress):
                    yield report
                else:
                    done += 1
                    yield _warmed(first, model, report)
        if done < count:
            raise CommandFailed(f"The agent warmed {done} of {count} prompts of {model} only.")
        first += count


def _decode(line: str) -> WarmReport:
    try:
        return decode_report(line)
    except msgspec.MsgspecError as exc:
        raise CommandFailed(f"The agent's response is not valid: {exc}.") from None


def _warmed(first: int, model: str, result: WarmResult) -> Warmed:
    return Warmed(
        number=first + result.index + 1,
        model=model,
        tokens=result.prompt_tokens,
        cached_tokens=result.cached_tokens,
        seconds=result.seconds,
        error=result.error,
    )


def _print_table(warmed: Sequence[Warmed]) -> None:
    table = Table(box=None)
    table.add_column("prompt", justify="right")
    table.add_column("model")
    for title in ("tokens", "cached", "seconds"):
        table.add_column(title, justify="right")
    table.add_column("")
    for each in warmed:
        counts = (f"{each.tokens:,}", f"{each.cached_tokens:,}", f"{each.seconds:.2f}")
        # Plain text, since a name or a sentence may contain rich's markup.
        table.add_row(str(each.number), Text(each.model), *counts, Text(each.error or ""))
    Screen(soft_wrap=True).print(table)
