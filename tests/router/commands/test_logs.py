"""`router logs`: what it reads and prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from router.api.admin.report_views import LogLineRow, LogRow
from router.commands import logs
from router.commands.client import AdminClient

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]


def row(node: str | None, *lines: tuple[float, str], **changes: Any) -> LogRow:
    made = tuple(LogLineRow(at_s=at_s, text=text) for at_s, text in lines)
    values: dict[str, Any] = {"cursor": "i-1", "has_gap": False, "error": None, "lines": made}
    return LogRow(**{"node": node, **values, **changes})


class PlayedLogs:
    """Responds with one list of logs after the other, and then with Ctrl-C."""

    def __init__(self, *pages: Sequence[LogRow]) -> None:
        self._pages = list(pages)
        self.queries: list[dict[str, list[str]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/admin/logs"
        query = request.url.params
        self.queries.append({name: query.get_list(name) for name in query})
        if not self._pages:
            raise KeyboardInterrupt
        return httpx.Response(200, json=[each.model_dump() for each in self._pages.pop(0)])


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_S", 0.0)


def test_lines_of_all_logs_are_printed_in_the_order_of_their_times(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = PlayedLogs(
        [row(None, (1.0, "one"), (4.0, "four")), row("mini", (2.0, "two\n  three \x1b[2J"))]
    )
    logs.show(played(pages), None, 50, own=False, follow=False, as_json=False)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "router  one",
        "mini    two",
        "mini      three \\x1b[2J",
        "router  four",
    ]
    assert pages.queries == [{"lines": ["50"]}]


def test_following_reads_on_where_it_stopped_until_ctrl_c(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"error": "The node is lost.", "cursor": ""}
    pages = PlayedLogs(
        [row(None, (1.0, "one")), row("mini", cursor="m-7")],
        [row(None, cursor="i-2", has_gap=True), row("mini", **lost)],
        [row(None, (2.0, "two"), cursor="i-2"), row("mini", **lost)],
    )
    logs.show(played(pages), None, 50, own=False, follow=True, as_json=False)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["router  one", "router  two"]
    assert printed.err.splitlines() == [
        "Some lines of router are left out here.",
        "The log of mini cannot be read: The node is lost.",
    ]
    assert [query.get("after") for query in pages.queries] == [
        None,
        [":i-1", "mini:m-7"],
        [":i-2", "mini:m-7"],
        [":i-2", "mini:m-7"],
    ]


def test_one_log_has_no_names_and_json_is_an_object_a_line(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = PlayedLogs([row("mini", (2.0, "two"))], [row("mini", (2.0, "two"))])
    client = played(pages)
    logs.show(client, "mini", 5, own=False, follow=False, as_json=False)
    logs.show(client, "mini", 5, own=False, follow=False, as_json=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "two"
    assert json.loads(second) == {"source": "mini", "at_s": 2.0, "line": "two"}
    assert pages.queries[0] == {"node": ["mini"], "lines": ["5"]}
