"""Compares the predicted cached tokens of prompts with what nodes have reused."""

from node.protocol.chain.prefix import Chain
from router.fleet.prefix_index import PrefixIndex
from router.records.metrics import Metrics
from router.types import Verdict


class Predictions:
    """Counts errors of predictions, and lowers index entries that promised too much."""

    def __init__(self, index: PrefixIndex, metrics: Metrics) -> None:
        self._index = index
        self._metrics = metrics

    def on_verdict(self, verdict: Verdict, chain: Chain | None) -> None:
        """Compares the usage record of a request with this chain."""
        usage, lease = verdict.usage, verdict.lease
        if usage is None or verdict.failed or chain is None:
            return
        # A prompt's last token is computed even if all of the prompt is stored.
        predicted = min(lease.predicted_tokens, max(0, usage.prompt_tokens - 1))
        self._metrics.compared(lease, predicted, usage)
        if usage.cached_tokens < predicted:
            self._index.lower(lease.node_id, chain, usage.cached_tokens, lease.granted_s)
