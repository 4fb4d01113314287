"""The agent's Prometheus metrics: counters and histograms of ended requests, and the present state,
which is read from the supervisor at each scrape."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from node.agent.open_request import Job
from node.engines.slot import EngineState
from node.engines.supervisor import Supervisor
from node.ipc.messages import EngineStats
from node.protocol.messages import Finished, ModelStatus

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_PREFIX = "mlx_fleet_node_"
_WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320)
_GAP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)

_Family = GaugeMetricFamily | CounterMetricFamily

MODEL_GAUGES: tuple[tuple[str, str, Callable[[ModelStatus], float]], ...] = (
    ("model_requests", "Requests that an engine has accepted.", lambda each: each.active_requests),
    ("model_waiting", "Requests that wait for a model.", lambda each: _waiting(each)),
    ("model_memory_bytes", "Memory of a model without KV.", lambda each: each.weight_bytes),
)
ENGINE_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("kv_live_bytes", "KV of running requests.", lambda stats: stats.live_kv_bytes),
    ("kv_memory_bytes", "Stored KV in memory.", lambda stats: stats.stored_kv_bytes),
    ("kv_disk_bytes", "Stored KV on disk.", lambda stats: stats.disk_kv_bytes),
    ("mlx_active_bytes", "Memory that MLX has in use.", lambda stats: stats.active_bytes),
    ("mlx_free_bytes", "Memory that MLX keeps for reuse.", lambda stats: stats.free_bytes),
    ("rows_waiting", "Sequences that wait for their prefill.", lambda stats: stats.waiting_rows),
    ("rows_prefilling", "Sequences in prefill.", lambda stats: stats.prefilling_rows),
    ("rows_decoding", "Sequences in decode.", lambda stats: stats.decoding_rows),
)
ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("prefilled_tokens", "Tokens prefilled.", lambda stats: stats.prefill_tokens),
    ("reused_tokens", "Tokens reused from cached KV.", lambda stats: stats.cached_tokens),
    ("disk_read_files", "Files read from the disk tier.", lambda stats: stats.disk.read_files),
    ("disk_read_bytes", "Bytes of these files.", lambda stats: stats.disk.read_bytes),
    ("disk_read_seconds", "Seconds of these reads.", lambda stats: stats.disk.read_s),
    (
        "disk_unreadable_files",
        "Files of the disk tier that were corrupt or could not be read.",
        lambda stats: stats.disk.unreadable_files,
    ),
    ("disk_written_files", "Files written to the disk tier.", lambda s: s.disk.written_files),
    ("disk_written_bytes", "Bytes of these files.", lambda stats: stats.disk.written_bytes),
    (
        "disk_failed_writes",
        "Writes that the disk has refused.",
        lambda stats: stats.disk.failed_writes,
    ),
)
"""Counters of engines begin at 0 with each load."""


class NodeMetrics:
    """Owner of the counters. Labels are names of this node's models, never a client's text."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Present(supervisor))
        self._requests = Counter(
            _PREFIX + "requests",
            "Requests that have ended.",
            ("model", "reason"),
            registry=self._registry,
        )
        self._tokens = Counter(
            _PREFIX + "tokens",
            "Tokens of ended requests: prompt (cached included), cached, completion (reasoning "
            "included), reasoning.",
            ("model", "kind"),
            registry=self._registry,
        )
        self._queue_s = self._histogram("queue_seconds", "From acceptance to prefill.")
        self._ttft_s = self._histogram("ttft_seconds", "From arrival to the first content.")
        self._prefill_s = self._histogram("prefill_seconds", "Prefill of a prompt.")
        self._gap_s = self._histogram(
            "inter_token_seconds", "Mean time between the tokens of a request.", _GAP_BUCKETS_S
        )

    def finished(self, record: Finished, _job: Job) -> None:
        """Counts an ended request."""
        model = record.model
        self._requests.labels(model, record.reason.value).inc()
        for kind, tokens in (
            ("prompt", record.prompt_tokens),
            ("cached", record.cached_tokens),
            ("completion", record.completion_tokens),
            ("reasoning", record.reasoning_tokens),
        ):
            self._tokens.labels(model, kind).inc(tokens)
        if record.ttft_s is None:
            return
        self._queue_s.labels(model).observe(record.queue_s)
        self._ttft_s.labels(model).observe(record.ttft_s)
        self._prefill_s.labels(model).observe(record.prefill_s)
        if record.completion_tokens > 1:
            self._gap_s.labels(model).observe(record.decode_s / (record.completion_tokens - 1))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def _histogram(
        self, name: str, meaning: str, buckets: Iterable[float] = _WAIT_BUCKETS_S
    ) -> Histogram:
        name = _PREFIX + name
        return Histogram(name, meaning, ("model",), registry=self._registry, buckets=tuple(buckets))


class _Present(Collector):
    """The supervisor's state."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def describe(self) -> Iterable[Metric]:
        """Empty: the supervisor is not to be asked while the agent is being made."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._memory()
        statuses, engines = self._supervisor.status(), self._supervisor.engines()
        states = _gauge("model_state", "1 for the state that a model has.", "model", "state")
        for status in statuses:
            states.add_metric((status.name, status.state.value), 1)
        yield states
        for name, meaning, figure in MODEL_GAUGES:
            gauge = _gauge(name, meaning, "model")
            for status in statuses:
                gauge.add_metric((status.name,), figure(status))
            yield gauge
        yield from _engine_figures(engines)

    def _memory(self) -> Iterator[Metric]:
        budget = self._supervisor.budget
        yield _figure("memory_limit_bytes", "Most memory for all models.", budget.total_bytes)
        yield _figure("memory_leased_bytes", "Leased without stored KV.", budget.leased_bytes)
        yield _figure("memory_stored_kv_bytes", "Leased for stored KV.", budget.stored_bytes)
        pressure = int(self._supervisor.pressure)
        yield _figure("memory_pressure", "0 none, 1 soft, 2 hard.", pressure)


def _engine_figures(engines: dict[str, EngineState]) -> Iterator[Metric]:
    known = {
        name: stats
        for name, engine in engines.items()
        if (stats := engine.handle.link.stats) is not None
    }
    for name, meaning, figure in ENGINE_GAUGES:
        yield _filled(_gauge(name, meaning, "model"), known, figure)
    for name, meaning, figure in ENGINE_COUNTERS:
        counter = CounterMetricFamily(_PREFIX + name, meaning, labels=("model",))
        yield _filled(counter, known, figure)
    events = CounterMetricFamily(
        _PREFIX + "cache_events",
        "Changes of entries of the prefix cache since the load.",
        labels=("model", "kind"),
    )
    for name, engine in engines.items():
        for kind, count in engine.cache_events.items():
            events.add_metric((name, kind), count)
    yield events


def _filled(
    family: _Family, known: dict[str, EngineStats], figure: Callable[[EngineStats], float]
) -> Metric:
    for name, stats in known.items():
        family.add_metric((name,), figure(stats))
    return family


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, meaning, labels=labels)


def _figure(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, meaning, value=value)


def _waiting(status: ModelStatus) -> int:
    return max(status.leases - status.active_requests, 0)
