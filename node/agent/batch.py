"""What a request gets from its engine, piece by piece."""

from collections.abc import AsyncIterator, Sequence

from node.engines.slot import ModelAwaited
from node.ipc.messages import Accepted, Delta, Progress

Batch = Accepted | Sequence[Delta] | Progress | ModelAwaited
"""That the engine has taken the row, or deltas that came together. None of them means silence, and
so does how far the prefill is, or the load."""
Batches = AsyncIterator[Batch]
