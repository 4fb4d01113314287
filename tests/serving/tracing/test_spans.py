"""Spans, and the collector that gets them."""

from __future__ import annotations

import sys

import pytest

from serving.setting import BadSetting
from serving.tracing.options import read_endpoint
from serving.tracing.spans import Tracing, TracingMissing, open_tracing
from tests.serving.tracing.collector import attributes, collecting

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = f"traceparent: 00-{TRACE_ID}-{PARENT_ID}-01\r\ntracestate: a=1\r\n"


def test_a_span_is_sent_with_its_times_and_the_next_one_is_its_child() -> None:
    with collecting() as collector:
        tracing = Tracing(collector.url, "router")
        span = tracing.begin(TRACE, 100.0)
        child = tracing.begin(span.trace, 100.5)
        child.end("/v1/responses", {"status": 500}, 101.0, failed=True)
        span.end("/v1/responses", {"model": "m", "ttft_s": 0.5}, 102.0)
        tracing.close()
    first, second = collector.spans
    assert collector.services == {"router"}
    assert [each.trace_id.hex() for each in (first, second)] == [TRACE_ID] * 2
    assert (second.parent_span_id.hex(), first.parent_span_id) == (PARENT_ID, second.span_id)
    assert span.trace == (
        f"traceparent: 00-{TRACE_ID}-{second.span_id.hex()}-01\r\ntracestate: a=1\r\n"
    )
    assert (second.start_time_unix_nano, second.end_time_unix_nano) == (100 * 10**9, 102 * 10**9)
    assert attributes(second) == {"model": "m", "ttft_s": 0.5}
    assert (second.name, second.status.code, first.status.code) == ("/v1/responses", 0, 2)


def test_a_request_without_a_trace_begins_one() -> None:
    with collecting() as collector:
        tracing = Tracing(collector.url, "router")
        span = tracing.begin("", 1.0)
        span.end("a", {}, 2.0)
        tracing.close()
    (sent,) = collector.spans
    assert sent.parent_span_id == b"" and sent.trace_id.hex() in span.trace


def test_a_client_that_does_not_sample_gets_no_span() -> None:
    with collecting() as collector:
        tracing = Tracing(collector.url, "router")
        span = tracing.begin(TRACE.replace("-01\r", "-00\r"), 1.0)
        span.end("a", {}, 2.0)
        tracing.close()
    assert collector.spans == []
    assert span.trace.startswith(f"traceparent: 00-{TRACE_ID}-") and "-00\r\n" in span.trace


def test_without_the_extra_the_start_fails_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingMissing, match=r"pip install 'mlx-fleet\[otel\]'"):
        open_tracing("http://127.0.0.1:4318", "router")
    assert open_tracing(None, "router") is None


def test_an_endpoint_is_an_address() -> None:
    assert read_endpoint("--otel-endpoint", "localhost:4318/") == "http://localhost:4318"
    with pytest.raises(BadSetting, match="--otel-endpoint: .* is not an address"):
        read_endpoint("--otel-endpoint", "ftp://x")
