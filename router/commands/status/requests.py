"""The requests that run or wait, as `GET /v1/requests` lists them."""

import time
from collections.abc import Sequence
from typing import Any

from router.commands import console, wording
from router.commands.client import CommandFailed
from router.commands.tables import Cell


def print_requests(requests: Sequence[dict[str, Any]], *, wide: bool = False) -> None:
    if not requests:
        console.print_line("No request runs or waits.")
        return
    now_s = time.time()
    console.print_table(
        ("Request", "Key", "Model", "Node", "State", ">Since"),
        [_cells(each, now_s) for each in requests],
        ("Request", "Node"),
        wide=wide,
    )


def _cells(request: dict[str, Any], now_s: float) -> tuple[Cell, ...]:
    try:
        state = str(request["state"])
        if position := request.get("position"):
            state += f", place {position}"
        return (
            str(request["id"]),
            str(request["key"]),
            str(request["model"]),
            str(request["node"] or ""),
            state,
            wording.span(max(0.0, now_s - float(request["arrived_unix_s"]))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CommandFailed("The router lists requests in another format.") from error
