"""Spans of requests, sent to an OpenTelemetry collector. The packages for it are in the extra
`otel`, which is not installed unless somebody wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.errors import CannotStart
from serving.tracing.context import header_lines, headers_of

EXPORT_TIMEOUT_S = 5.0
"""Longest wait for the collector, per batch, and at the end of the process."""
_PATH = "/v1/traces"
_NS = 1_000_000_000
Attributes = Mapping[str, str | int | float]


class TracingMissing(CannotStart):
    """The packages for spans are not installed."""

    def __init__(self) -> None:
        super().__init__(
            "--otel-endpoint needs the packages of the extra `otel`: "
            "`pip install 'mlx-fleet[otel]'`."
        )


class Span:
    """A span that has begun. It is sent once it has ended."""

    def __init__(self, span: Any, trace: str) -> None:
        self._span = span
        self.trace = trace
        """Header lines by which the next span is a child of this one, as `trace_lines` returns
        them."""

    def end(
        self, name: str, attributes: Attributes, end_unix_s: float, *, failed: bool = False
    ) -> None:
        """Ends the span under this name."""
        self._span.update_name(name)
        self._span.set_attributes(dict(attributes))
        if failed:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
        self._span.end(int(end_unix_s * _NS))


class Tracing:
    """Owner of the spans that wait to be sent: at most some thousands, the newest are dropped."""

    def __init__(self, endpoint: str, service: str) -> None:
        """`service` names the program. Raises `TracingMissing`."""
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        except ImportError:
            raise TracingMissing from None
        session = requests.Session()
        session.trust_env = False  # proxies of the environment are for the internet
        exporter = OTLPSpanExporter(endpoint + _PATH, timeout=EXPORT_TIMEOUT_S, session=session)
        # At a fork or an exit nothing is sent: the product closes it.
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("mlx-fleet")
        self._propagator = tracecontext.TraceContextTextMapPropagator()

    def begin(self, trace: str, begin_unix_s: float) -> Span:
        """Begins a span within the trace of these header lines, or a trace of its own if they are
        empty."""
        from opentelemetry.trace import set_span_in_context

        parent = self._propagator.extract(headers_of(trace)) if trace else None
        span = self._tracer.start_span(
            "request", context=parent, start_time=int(begin_unix_s * _NS)
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return Span(span, header_lines(carrier))

    def close(self) -> None:
        """Sends what waits. Blocks for at most a few times `EXPORT_TIMEOUT_S`."""
        self._provider.shutdown()


def open_tracing(endpoint: str | None, service: str) -> Tracing | None:
    """Returns None without an endpoint. Raises `TracingMissing`."""
    return None if endpoint is None else Tracing(endpoint, service)
