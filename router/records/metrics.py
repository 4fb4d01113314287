"""The router's Prometheus metrics."""

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from node.protocol.messages import Finished, ModelStatus
from router.errors import RouterError
from router.records.collectors import (
    Figures,
    LabeledCounter,
    LabeledHistogram,
    TokenCounter,
    Values,
)
from router.records.outcomes import reason_of
from router.types import Lease, Priority, Ticket, Tokens
from serving.http.callers import Callers

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_PREFIX = "mlx_fleet_"
_WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320)
_GAP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
_OFF_BUCKETS_TOKENS = (-4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096, 16384, 65536)
"""Up to -1 the node reused less than predicted."""
_CLASSES = {priority: priority.name.lower() for priority in Priority}
_MOST_SERIES = 1000
"""Most pairs of model and key of which tokens are counted apart."""


class Metrics:
    """Owner of the counters. Model labels are always names of the fleet's models, never a client's
    text."""

    def __init__(self, node_name: Callable[[str], str]) -> None:
        """`node_name` returns the name of a node's id, for labels."""
        self._node_name = node_name
        self._registry = CollectorRegistry()
        self._figures = Figures()
        self._registry.register(self._figures)
        self._requests = self._counter(
            "requests", "Requests that have ended.", "model", "node", "outcome"
        )
        self._ttft_s = self._histogram(
            "ttft_seconds",
            "From a request's arrival to its first content.",
            _WAIT_BUCKETS_S,
            "model",
            "node",
        )
        self._wait_s = self._histogram(
            "queue_wait_seconds",
            "Seconds in the router's queue.",
            _WAIT_BUCKETS_S,
            "model",
            "class",
        )
        self._off_tokens = self._histogram(
            "prediction_error_tokens",
            "Cached tokens of a prompt, less what the router had predicted.",
            _OFF_BUCKETS_TOKENS,
            "node",
            "model",
        )
        self._over = self._counter(
            "over_predictions", "Prompts of which less was cached than predicted.", "node", "model"
        )
        self._predicted = self._counter(
            "predicted_tokens", "Cached tokens, as predicted.", "node", "model"
        )
        self._cached = self._counter("cached_tokens", "Cached tokens, actual.", "node", "model")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.", "node", "model")

        self._count_nodes()
        self._count_ends()

    def _count_nodes(self) -> None:
        """Counters of what nodes do besides serving."""
        self._foreign = self._counter(
            "third_party_tokens",
            "Tokens that third-party servers have reported.",
            "node",
            "model",
            "kind",
        )
        self._cost = self._counter(
            "paid_cost", "What paid servers cost, as budgets are charged.", "node", "model"
        )
        self._stalls = self._counter(
            "stalls",
            "Attempts that ended because their connected node made no progress.",
            "node",
            "model",
        )
        self._load_s = self._histogram(
            "load_seconds", "Seconds that loads of models took.", _WAIT_BUCKETS_S, "node", "model"
        )
        self._swaps = self._counter(
            "swaps", "Loads for which another model was unloaded.", "node", "model"
        )

    def _count_ends(self) -> None:
        """Counters of how requests end, and of what they took."""
        self._gap_s = self._histogram(
            "inter_token_seconds",
            "Mean time between the tokens of a response.",
            _GAP_BUCKETS_S,
            "model",
            "node",
        )
        self._tokens = TokenCounter(
            _PREFIX + "tokens",
            "Tokens of ended requests: prompt and of these cached, completion and of these "
            "reasoning.",
            _MOST_SERIES,
        )
        self._registry.register(self._tokens)
        self._aborts = self._counter(
            "aborted_requests",
            "Requests that were given up before their response was complete.",
            "model",
            "by",
            "phase",
        )
        self._refused = self._counter(
            "refused_requests", "Requests that ended with an error of the router.", "reason"
        )

    # --- events ---

    def request_ended(self, model: str, node_id: str, outcome: str) -> None:
        """Counts an ended request; `node_id` is empty if no node was granted."""
        name = self._node_name(node_id) if node_id else ""
        self._requests.add(model, name, outcome)

    def refused(self, error: RouterError) -> None:
        """Counts a request that ended with an error of the router, whenever that was."""
        self._refused.add(reason_of(error))

    def aborted(self, model: str, by: str, phase: str) -> None:
        """Counts a request that its client has left (`by` is `disconnect`) or cancelled (`cancel`)
        in one of the phases `body`, `queue`, `prefill` and `stream`."""
        self._aborts.add(model, by, phase)

    def used(
        self, ticket: Ticket, lease: Lease, tokens: Tokens | None, gap_s: float | None
    ) -> None:
        """Counts the tokens of an attempt, and observes the mean time between them; None where it
        is not known."""
        if tokens is not None:
            self._tokens.add(lease.model, ticket.caller.prefix, tokens)
        if gap_s is not None:
            self._gap_s.observe(gap_s, lease.model, self._node_name(lease.node_id))

    def first_content(self, lease: Lease, ttft_s: float) -> None:
        """Observes the time to the first content."""
        self._ttft_s.observe(ttft_s, lease.model, self._node_name(lease.node_id))

    def queue_left(self, model: str, priority: Priority, wait_s: float) -> None:
        """Observes the wait of a request that was granted, rejected, or given up by its client."""
        self._wait_s.observe(wait_s, model, _CLASSES[priority])

    def compared(self, lease: Lease, predicted_tokens: int, usage: Finished) -> None:
        """Compares a usage record's cached tokens with the prediction."""
        labels = (self._node_name(lease.node_id), lease.model)
        self._off_tokens.observe(usage.cached_tokens - predicted_tokens, *labels)
        if usage.cached_tokens < predicted_tokens:
            self._over.add(*labels)
        self._predicted.add(*labels, count=predicted_tokens)
        self._cached.add(*labels, count=usage.cached_tokens)
        self._prompt.add(*labels, count=usage.prompt_tokens)

    def third_party_tokens(self, lease: Lease, tokens: Tokens) -> None:
        """Counts tokens that a third-party server reported."""
        name = self._node_name(lease.node_id)
        for kind, count in zip(tokens._fields, tokens, strict=True):
            self._foreign.add(name, lease.model, kind, count=count)

    def charged(self, lease: Lease, cost: float) -> None:
        """Counts the cost of an attempt at a paid server."""
        self._cost.add(self._node_name(lease.node_id), lease.model, count=cost)

    def stalled(self, lease: Lease) -> None:
        """Counts an attempt that ended because of a stall."""
        self._stalls.add(self._node_name(lease.node_id), lease.model)

    def loaded(self, node_id: str, model: ModelStatus, *, is_swap: bool) -> None:
        """Counts a load; `is_swap` is True if another model was unloaded before it."""
        labels = (self._node_name(node_id), model.name)
        if model.load_s is not None:
            self._load_s.observe(model.load_s, *labels)
        if is_swap:
            self._swaps.add(*labels)

    # --- reading ---

    def add_gauge(
        self, name: str, meaning: str, labels: Sequence[str], read: Callable[[], Values]
    ) -> None:
        """Adds a gauge of another owner; `read` returns its value for each tuple of labels."""
        self._figures.add(partial(GaugeMetricFamily, _PREFIX + name, meaning, labels=labels), read)

    def add_callers(self, callers: Callers) -> None:
        """Adds the counts of connections that the server has dropped."""
        family = partial(
            CounterMetricFamily,
            _PREFIX + "dropped_connections",
            "Connections that were refused or cut off to keep room for others.",
            labels=("reason",),
        )
        self._figures.add(
            family,
            lambda: [(("open_files",), callers.refused), (("no_key",), callers.cut_off)],
        )

    def add_node_gauge(self, name: str, meaning: str, read: Callable[[], dict[str, int]]) -> None:
        """Like `add_gauge`, for figures by node id."""

        def by_name() -> Values:
            return [((self._node_name(node_id),), figure) for node_id, figure in read().items()]

        self.add_gauge(name, meaning, ("node",), by_name)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> LabeledCounter:
        counter = LabeledCounter(_PREFIX + name, meaning, labels)
        self._registry.register(counter)
        return counter

    def _histogram(
        self, name: str, meaning: str, bounds: Sequence[float], *labels: str
    ) -> LabeledHistogram:
        histogram = LabeledHistogram(_PREFIX + name, meaning, bounds, labels)
        self._registry.register(histogram)
        return histogram
