"""`GET /fleet/logs` of an agent."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from node.protocol.logs import PATH_LOGS, LogPage
from serving.logs.recent import RECENT
from tests.node.serving import running


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger whose lines the process keeps."""
    found = logging.getLogger("node.test_logs")
    found.setLevel(logging.INFO)
    found.addHandler(RECENT)
    yield found
    found.removeHandler(RECENT)


async def test_the_newest_lines_are_read_with_the_token_only(
    tmp_path: Path, logger: logging.Logger
) -> None:
    async with running(tmp_path) as agent:
        logger.info("first")
        logger.info("second")
        response = await agent.client.get(PATH_LOGS, params={"lines": 1})
        page = msgspec.json.decode(response.content, type=LogPage)
        assert [line.text for line in page.lines] == ["second"]
        logger.info("third")
        query: dict[str, str | int] = {"instance": page.instance, "after": page.last}
        response = await agent.client.get(PATH_LOGS, params=query)
        page = msgspec.json.decode(response.content, type=LogPage)
        assert [line.text for line in page.lines] == ["third"] and not page.has_gap
        for bad in ({"lines": "0"}, {"lines": "99999"}, {"after": "-1"}, {"after": "x"}):
            refused = await agent.client.get(PATH_LOGS, params=bad)
            assert refused.status_code == 400
        wrong = {"authorization": "Bearer wrong"}
        refused = await agent.client.get(PATH_LOGS, headers=wrong)
        assert refused.status_code == 401
