"""The trace context of a request."""

import pytest

from serving.tracing.context import trace_id_of, trace_lines

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", PARENT.encode() + b"\r\nx-evil: 1")],
        [(b"traceparent", PARENT.encode() + b"\n")],
        [(b"traceparent", PARENT.encode())] * 2,
    ],
)
def test_what_is_no_trace_adds_no_header(headers: list[tuple[bytes, bytes]]) -> None:
    assert trace_lines(headers) == ""


def test_a_trace_s_states_are_one_header() -> None:
    headers = [(b"tracestate", b"a=1"), (b"traceparent", PARENT.encode()), (b"tracestate", b"b=2")]
    assert trace_lines(headers) == f"traceparent: {PARENT}\r\ntracestate: a=1,b=2\r\n"


def test_the_id_of_a_trace_is_within_its_parent() -> None:
    lines = trace_lines([(b"traceparent", PARENT.encode()), (b"tracestate", b"a=1")])
    assert trace_id_of(lines) == "0af7651916cd43dd8448eb211c80319c"
    assert trace_id_of("") == ""
