"""The stream of a request's output from its engine."""

from collections.abc import AsyncIterator, Sequence

from node.engines.lease import ModelAwaited
from node.ipc.messages import Accepted, Delta, Progress

Batch = Accepted | Sequence[Delta] | Progress | ModelAwaited
"""The engine's acceptance of the row, or deltas that arrived together. Every other item means an
idle interval: an empty sequence, the progress of the prefill, or the state of the model's load."""
Batches = AsyncIterator[Batch]
