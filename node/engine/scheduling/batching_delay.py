"""How long an idle engine waits for company before it prefills.

Requests that come together are a millisecond or more apart by the time they are parsed and
rendered. Prefilled together they cost one pass over the weights; the first one alone costs the
others a whole pass of waiting. The wait is a small share of what the prefill will take, so that
a prompt that is quick to prefill is not held up by it.
"""

SHARE = 0.02
LONGEST_S = 0.01
"""After the last arrival."""
LONGEST_IN_ALL = 4
"""Windows after the first arrival."""
_NEWEST = 0.3
"""Weight of the newest prefill in the running mean."""


class Gather:
    """Learns how fast prompts are prefilled, and says until when to wait."""

    def __init__(self) -> None:
        self._s_per_token = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """A step has prefilled so many tokens of all prompts."""
        if tokens > 0:
            rate = seconds / tokens
            known = self._s_per_token or rate
            self._s_per_token = known + _NEWEST * (rate - known)

    def due_s(self, first_s: float, last_s: float, tokens: int) -> float:
        """When to begin with `tokens` of waiting prompts, of which the first and the last came at
        these times of the monotonic clock. At once while nothing is known of the speed."""
        window_s = min(LONGEST_S, SHARE * tokens * self._s_per_token)
        return min(last_s + window_s, first_s + LONGEST_IN_ALL * window_s)
