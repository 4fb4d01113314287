"""Batching delay: how long an idle engine waits for more requests before it prefills.

Requests that arrive together are a millisecond or more apart once they are parsed and rendered.
Prefilled together they cost one pass over the weights; if the first one starts alone, the others
wait for a whole pass. The delay is a small share of the expected prefill time, so that a prompt
that is quick to prefill hardly waits.
"""

PREFILL_SHARE = 0.02
"""Length of the window as a share of the expected prefill time."""
MAX_WINDOW_S = 0.01
"""Longest window after the last arrival, in seconds."""
MAX_WINDOWS = 4
"""Longest delay after the first arrival, in windows."""
_NEWEST = 0.3
"""Weight of the newest prefill in the running mean."""


class BatchingDelay:
    """Learns the speed of prefill and computes the end of the batching delay."""

    def __init__(self) -> None:
        self._s_per_token = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """Records a step that prefilled `tokens` tokens of all its prompts in `seconds`."""
        if tokens > 0:
            rate = seconds / tokens
            known = self._s_per_token or rate
            self._s_per_token = known + _NEWEST * (rate - known)

    def due_s(self, first_s: float, last_s: float, tokens: int) -> float:
        """Returns when to start prefilling waiting prompts of `tokens` tokens in all. `first_s` and
        `last_s` are the monotonic times of the first and the last arrival. There is no delay before
        the speed is known."""
        window_s = min(MAX_WINDOW_S, PREFILL_SHARE * tokens * self._s_per_token)
        return min(last_s + window_s, first_s + MAX_WINDOWS * window_s)
