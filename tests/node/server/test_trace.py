"""The trace of a request at an agent."""

from pathlib import Path

import pytest

from node.server import responses, v1
from tests.node.serving import running

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_log_lines_of_a_request_name_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    named: list[str] = []
    for module in (v1, responses):
        monkeypatch.setattr(module, "set_request_id", lambda _id, trace_id: named.append(trace_id))
    async with running(tmp_path) as agent:
        for parent in (f"00-{TRACE}-b7ad6b7169203331-01", "00-nothing"):
            headers = {"traceparent": parent}
            response = await agent.client.post(
                path, json={"model": "scripted", **body}, headers=headers
            )
            assert response.status_code == 200
    assert named == [TRACE, ""]
