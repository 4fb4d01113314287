"""Measures an engine's steps: learns their speed, announces and logs long ones."""

import logging
import time
from collections.abc import Callable

from node.engine.decoding.batches import PrefillGroup
from node.engine.decoding.rates import Rates
from node.engine.decoding.row import Row
from node.engine.scheduling.batching_delay import BatchingDelay
from node.ipc.messages import Progress

PROGRESS_TOKENS = 1024
"""Prefills of fewer tokens report no progress."""
LONG_STEP_S = 2.0
"""Seconds from which on a step is long: it is announced before it begins if that is expected, and
logged afterwards."""
UNKNOWN_STEP_S = 60.0
"""Expected seconds of the first chunk, when the model's speed is not known."""

logger = logging.getLogger(__name__)


class StepCosts:
    """The measured steps of one engine. Times are of the monotonic clock."""

    def __init__(self, on_long_step: Callable[[float], None]) -> None:
        """`on_long_step` is called before a long step with the seconds that it is expected to
        take."""
        self.rates = Rates()
        self.batching_delay = BatchingDelay()
        self.prefilled_tokens = 0
        """Tokens of requests that the model has prefilled since the load."""
        self._on_long_step = on_long_step
        self._progress: dict[str, Progress] = {}
        self._decode_s = 0.0
        """Seconds of the last decode step."""

    def prefill(self, group: PrefillGroup, chunk_tokens: int) -> None:
        """Runs and measures one chunk of a group that has tokens left to prefill."""
        depth_tokens, prompts = group.depth_tokens, len(group.rows)
        most_tokens = prompts * min(chunk_tokens, group.rest_tokens)
        self._announce(self._expected_s(depth_tokens, most_tokens))
        began_s = time.monotonic()
        tokens = group.run(chunk_tokens)
        seconds = time.monotonic() - began_s
        self.prefilled_tokens += tokens
        self.rates.learn_prefill(depth_tokens, tokens, seconds)
        self.batching_delay.learn(tokens, seconds)
        for row in group.rows:
            self._note_progress(row)
        if seconds >= LONG_STEP_S:
            logger.warning(
                "A step took %.1f s: prefill of %d tokens of %d prompts, behind %d tokens.",
                *(seconds, tokens, prompts, depth_tokens),
            )

    def expect_decode(self) -> None:
        """Announces the next decode step if it may be long; it is expected to take as long as the
        one before."""
        self._announce(self._decode_s)

    def note_decode(self, rows: int, depth_tokens: int, seconds: float) -> None:
        """Records a decode step of `rows` rows, the longest of which has `depth_tokens` tokens."""
        self.rates.learn_decode(rows, depth_tokens, seconds)
        self._decode_s = seconds
        if seconds >= LONG_STEP_S:
            logger.warning(
                "A step took %.1f s: a token of %d rows, the longest of %d tokens.",
                *(seconds, rows, depth_tokens),
            )

    def take_progress(self) -> tuple[Progress, ...]:
        """Returns the progress of long prefills, where it has changed since the last call."""
        progress = tuple(self._progress.values())
        self._progress.clear()
        return progress

    def _expected_s(self, depth_tokens: int, tokens: int) -> float:
        if not self.rates.knows_prefill:
            return UNKNOWN_STEP_S
        return tokens * self.rates.prefill_s_per_token(depth_tokens)

    def _announce(self, expected_s: float) -> None:
        if expected_s >= LONG_STEP_S:
            self._on_long_step(expected_s)

    def _note_progress(self, row: Row) -> None:
        if row.prefill_tokens - row.tally.cached_tokens >= PROGRESS_TOKENS:
            self._progress[row.uid] = Progress(row.uid, row.done_tokens, row.prefill_tokens)
