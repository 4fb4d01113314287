"""`router cache clear`: what it sends and prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import httpx
import pytest
import typer

from router.api.admin.views import ClearedRow
from router.commands import cache
from router.commands.client import AdminClient, CommandFailed

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]
MIB = 1024**2


def row(node: str, **changes: Any) -> ClearedRow:
    values = {"models": ("m",), "memory_bytes": 3 * MIB, "disk_bytes": 0, "skipped": ()}
    return ClearedRow(**{"node": node, "error": None, **values, **changes})


def answering(rows: list[ClearedRow], sent: list[Any]) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=[each.model_dump() for each in rows])

    return answer


def test_a_table_shows_what_each_node_has_freed(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[Any] = []
    client = played(answering([row("mini"), row("studio", models=(), skipped=("x",))], sent))
    cache.clear(client, None, "m", yes=True, as_json=False)
    assert sent == [("/admin/cache/clear", {"node": None, "model": "m"})]
    out = capsys.readouterr().out
    assert "3 MiB" in out and "none is loaded" in out
    assert "Not cleared on studio: x, being loaded or busy; try again in a moment." in out


def test_a_node_that_failed_fails_the_command(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    client = played(answering([row("mini"), row("studio", error="It broke.")], []))
    with pytest.raises(CommandFailed, match="Not every cache was cleared. studio: It broke."):
        cache.clear(client, None, None, yes=True, as_json=True)
    assert [each["node"] for each in json.loads(capsys.readouterr().out)] == ["mini", "studio"]


def test_nothing_is_cleared_without_a_confirmation(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def no(question: str, *, abort: bool) -> None:
        questions.append(question)
        assert abort
        raise click.Abort

    monkeypatch.setattr(typer, "confirm", no)
    sent: list[Any] = []
    with pytest.raises(click.Abort):
        cache.clear(played(answering([], sent)), "mini", None, yes=False, as_json=False)
    assert questions == ["Delete the stored KV of all models on mini?"] and sent == []
