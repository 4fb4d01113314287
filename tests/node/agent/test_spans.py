"""The spans of requests at an agent."""

from pathlib import Path

from tests.node.serving import running
from tests.serving.tracing.collector import attributes, collecting

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_each_request_has_a_span_with_its_tokens_and_times(tmp_path: Path) -> None:
    with collecting() as collector:
        async with running(tmp_path, otel_endpoint=collector.url) as agent:
            body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
            response = await agent.client.post("/v1/chat/completions", json=body, headers=headers)
            usage = response.json()["usage"]
    (span,) = collector.spans
    assert collector.services == {"mlx-fleet-node"}
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    found = attributes(span)
    assert (span.name, found["mlx_fleet.outcome"]) == ("/v1/chat/completions", "stop")
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert float(found["mlx_fleet.ttft_s"]) > 0
    assert span.end_time_unix_nano > span.start_time_unix_nano
