"""The spans of requests at the router."""

from __future__ import annotations

from pathlib import Path

from tests.router.api.test_v1 import a_node, inferences
from tests.router.conftest import StartNode, running_router
from tests.serving.tracing.collector import attributes, collecting

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


async def test_each_request_has_a_span_between_its_client_s_and_its_node_s(
    tmp_path: Path, start_node: StartNode
) -> None:
    with collecting() as collector:
        async with running_router(tmp_path, otel_endpoint=collector.url) as router:
            node = await a_node(router, start_node)
            served = await router.post({"model": "m"}, traceparent=PARENT)
            assert await served.head() == 200
            await served.body()
            unknown = await router.post({"model": "nothing"}, traceparent=PARENT)
            assert await unknown.head() == 404
            wrong = await router.send("GET", "/v1/models", x_api_key="wrong")
            assert await wrong.head() == 401
            (request,) = inferences(node)
    spans = {(each.name, attributes(each)["mlx_fleet.outcome"]): each for each in collector.spans}
    assert collector.services == {"mlx-fleet-router"}
    assert set(spans) == {
        ("/v1/chat/completions", "served"),
        ("refused", "model_not_found"),
        ("refused", "invalid_api_key"),
    }
    span = spans["/v1/chat/completions", "served"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert request.header("traceparent") == f"00-{TRACE_ID}-{span.span_id.hex()}-01"
    found = attributes(span)
    assert found["http.route"] == "/v1/chat/completions"
    assert (found["http.response.status_code"], found["gen_ai.request.model"]) == (200, "m")
    assert (found["mlx_fleet.node"], found["mlx_fleet.key"]) == ("a", "first")
    assert "mlx_fleet.queue_s" in found and span.end_time_unix_nano > span.start_time_unix_nano
    assert spans["refused", "model_not_found"].parent_span_id.hex() == PARENT_ID
    assert spans["refused", "invalid_api_key"].parent_span_id == b""
