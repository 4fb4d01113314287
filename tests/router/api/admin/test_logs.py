"""`GET /admin/logs`: the router's own lines and those of agents."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from node.protocol.logs import PATH_LOGS, LogLine, LogPage
from serving.logs.recent import RECENT
from tests.router.api.admin.test_aliases import call
from tests.router.conftest import AddNode, Request, RunningRouter


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("mlx_fleet.test_logs")
    found.setLevel(logging.INFO)
    found.addHandler(RECENT)
    yield found
    found.removeHandler(RECENT)


class Logging:
    """The script of an agent with one line."""

    def __init__(self) -> None:
        self.queries: list[dict[str, list[str]]] = []

    async def __call__(self, request: Request) -> None:
        parts = urlsplit(request.target)
        assert parts.path == PATH_LOGS
        self.queries.append(parse_qs(parts.query))
        page = LogPage("i7", 12, has_gap=True, lines=(LogLine(5.0, "INFO of the agent"),))
        await request.answer(msgspec.json.encode(page))


async def test_every_log_is_read_from_where_it_was_read_before(
    router: RunningRouter, add_node: AddNode, logger: logging.Logger
) -> None:
    script = Logging()
    await add_node(router, "studio", script)
    logger.info("of the router")
    status, (own, agent) = await call(router, "GET", "/logs?lines=1")
    assert (status, own["node"], own["error"]) == (200, None, None)
    assert [line["text"] for line in own["lines"]] == ["of the router"]
    assert agent == {
        "node": "studio",
        "cursor": "i7-12",
        "has_gap": True,
        "error": None,
        "lines": [{"at_s": 5.0, "text": "INFO of the agent"}],
    }
    query = f"/logs?after=:{own['cursor']}&after=studio:{agent['cursor']}"
    _, (own, _) = await call(router, "GET", query)
    assert own["lines"] == []
    assert script.queries == [
        {"lines": ["1"], "after": ["0"]},
        {"lines": ["100"], "instance": ["i7"], "after": ["12"]},
    ]


async def test_one_log_is_read_alone(router: RunningRouter, add_node: AddNode) -> None:
    script = Logging()
    await add_node(router, "studio", script)
    _, rows = await call(router, "GET", "/logs?node=studio")
    assert [row["node"] for row in rows] == ["studio"]
    _, rows = await call(router, "GET", "/logs?own=true")
    assert [row["node"] for row in rows] == [None]
    status, answer = await call(router, "GET", "/logs?node=nowhere")
    assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_an_agent_that_cannot_be_read_does_not_hide_the_others(
    router: RunningRouter, add_node: AddNode
) -> None:
    async def broken(request: Request) -> None:
        await request.answer(b"[]")

    await add_node(router, "studio", broken)
    status, (own, agent) = await call(router, "GET", "/logs")
    assert (status, own["error"]) == (200, None)
    assert "does not respond like a node agent" in agent["error"] and agent["cursor"] == ""


@pytest.mark.parametrize("query", ["after=x", "after=a:b-c", "after=a:i-" + "9" * 99, "lines=0"])
async def test_a_query_that_is_none_is_refused(router: RunningRouter, query: str) -> None:
    status, answer = await call(router, "GET", f"/logs?{query}")
    assert (status, answer["error"]["code"]) == (400, "invalid_value")
