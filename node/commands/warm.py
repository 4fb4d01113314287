"""`node-agent warm`."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table

from node.commands.agent_client import CommandFailed, Place, posting, shown_bars
from node.errors import StartError
from node.protocol.messages import PATH_WARM
from node.warm import Body, WarmResult, check_body, decode_result, read_bodies


class Warmed(msgspec.Struct, frozen=True):
    """A prompt of the file, and what became of it."""

    number: int
    """In the file, from 1."""
    model: str
    tokens: int
    cached_tokens: int
    seconds: float
    error: str | None


def warm_prompts(file: Path, model: str | None, place: Place, *, as_json: bool) -> bool:
    """Has the agent prefill and pin the prompts of the file, and prints what became of them;
    whether all of them are warm. Raises `StartError` and `CommandFailed`."""
    bodies = read_bodies(file)
    if not bodies:
        raise StartError(f"{file} holds no requests.")
    models = [model or _model(body, number) for number, body in enumerate(bodies, 1)]
    for number, (body, name) in enumerate(zip(bodies, models, strict=True), 1):
        check_body(file, number, body, name)
    columns = (TextColumn("prefill"), BarColumn(), MofNCompleteColumn())
    warmed = []
    with shown_bars(*columns) as bars:
        bar = bars.add_task("", total=len(bodies))
        for each in _warm(place, bodies, models):
            warmed.append(each)
            bars.advance(bar)
    if as_json:
        print(msgspec.json.encode(warmed).decode())
    else:
        _print_table(warmed)
    return all(each.error is None for each in warmed)


def _model(body: Body, number: int) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise StartError(f"Request {number} names no model; add --model.")
    return model


def _warm(place: Place, bodies: Sequence[Body], models: Sequence[str]) -> Iterator[Warmed]:
    """One command for each run of the same model."""
    first = 0
    for model, run in itertools.groupby(models):
        count = len(list(run))
        requests = bodies[first : first + count]
        command = {"model": model, "requests": requests}
        done = 0
        with posting(place, PATH_WARM, command) as response:
            for line in response.iter_lines():
                yield _warmed(first, model, _decode(line))
                done += 1
        if done < count:
            raise CommandFailed(f"The agent warmed {done} of {count} prompts of {model} only.")
        first += count


def _decode(line: str) -> WarmResult:
    try:
        return decode_result(line)
    except msgspec.MsgspecError as exc:
        raise CommandFailed(f"The agent's answer is not understood: {exc}.") from None


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
        table.add_row(str(each.number), each.model, *counts, each.error or "")
    Console(soft_wrap=True).print(table)
