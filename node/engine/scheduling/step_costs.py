"""What an engine's steps have cost, and what they are expected to: told, learned and logged."""

import logging
import time
from collections.abc import Callable

from node.engine.decoding.batches import PrefillGroup
from node.engine.decoding.rates import Rates
from node.engine.decoding.row import Row
from node.engine.scheduling.batching_delay import Gather
from node.ipc.messages import Progress

PROGRESS_TOKENS = 1024
"""Prefills of fewer tokens tell no progress."""
LONG_STEP_S = 2.0
"""A step that is expected to take so long is told of before it begins, and one that has taken as
long is logged."""
UNKNOWN_STEP_S = 60.0
"""What the first chunk may take of a model whose speed is not known."""

logger = logging.getLogger(__name__)


class Accounts:
    """Of one engine; times are of the monotonic clock."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.gather = Gather()
        self.prefilled_tokens = 0
        """Through the model's forward since the load, of requests."""
        self.on_long_step: Callable[[float], None] = lambda expected_s: None
        """Is called before a long step, with the seconds that it is expected to take."""
        self._progress: dict[str, Progress] = {}
        self._decode_s = 0.0
        """Of the last decode step."""

    def prefill(self, group: PrefillGroup, chunk_tokens: int) -> None:
        """One chunk of the group, which has not reached its end."""
        depth_tokens, prompts = group.depth_tokens, len(group.rows)
        most_tokens = prompts * min(chunk_tokens, group.rest_tokens)
        self._announce(self._expected_s(depth_tokens, most_tokens))
        began_s = time.monotonic()
        tokens = group.run(chunk_tokens)
        seconds = time.monotonic() - began_s
        self.prefilled_tokens += tokens
        self.rates.learn_prefill(depth_tokens, tokens, seconds)
        self.gather.learn(tokens, seconds)
        for row in group.rows:
            self._tell_progress(row)
        if seconds >= LONG_STEP_S:
            logger.warning(
                "A step took %.1f s: prefill of %d tokens of %d prompts, behind %d tokens.",
                *(seconds, tokens, prompts, depth_tokens),
            )

    def expect_decode(self) -> None:
        """Decode steps are like the one before."""
        self._announce(self._decode_s)

    def note_decode(self, rows: int, depth_tokens: int, seconds: float) -> None:
        """A decode step of so many rows, the longest being `depth_tokens`."""
        self.rates.learn_decode(rows, depth_tokens, seconds)
        self._decode_s = seconds
        if seconds >= LONG_STEP_S:
            logger.warning(
                "A step took %.1f s: a token of %d rows, the longest of %d tokens.",
                *(seconds, rows, depth_tokens),
            )

    def take_progress(self) -> tuple[Progress, ...]:
        """How far long prefills are, where that has changed since the last call."""
        progress = tuple(self._progress.values())
        self._progress.clear()
        return progress

    def _expected_s(self, depth_tokens: int, tokens: int) -> float:
        if not self.rates.knows_prefill:
            return UNKNOWN_STEP_S
        return tokens * self.rates.prefill_s_per_token(depth_tokens)

    def _announce(self, expected_s: float) -> None:
        if expected_s >= LONG_STEP_S:
            self.on_long_step(expected_s)

    def _tell_progress(self, row: Row) -> None:
        if row.prefill_tokens - row.tally.cached_tokens >= PROGRESS_TOKENS:
            self._progress[row.uid] = Progress(row.uid, row.done_tokens, row.prefill_tokens)
