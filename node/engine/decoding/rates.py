"""Learned costs of steps: of prefill by depth, of decode by rows and depth.

Pure: the engine reports its measurements; scheduling, the prefix cache and the agent read them.
Classes are powers of two, so that a rate learned at 3,000 tokens also serves 2,500. An unknown
class of prefill uses the rate of the nearest known one.
"""

from typing import TypeVar

from node.ipc.learned_rates import DecodeRate, PrefillRate

KeyT = TypeVar("KeyT")
_NEWEST = 0.3
"""Weight of the newest measurement in a running mean."""
_FULL_TOKENS = 256
"""Chunks of fewer tokens have less weight: each costs a pass over the weights regardless of its
length."""
_LEAST_TOKENS = 64
"""Chunks of fewer tokens are ignored once a rate is known."""
_DEPTH_TOKENS = 1024
"""Upper end of the first class of depth."""
_PRIOR_S_PER_TOKEN = 1e-3
"""Assumed seconds per token before anything has been measured."""


def depth_class(tokens: int) -> int:
    """Returns the class of a depth: 0 below 1,024 tokens, then one more for each doubling."""
    return (tokens // _DEPTH_TOKENS).bit_length()


def class_begin_tokens(number: int) -> int:
    """Returns the lower end of a class of depth in tokens."""
    return 0 if number == 0 else _DEPTH_TOKENS << (number - 1)


def _rows_class(rows: int) -> int:
    return rows.bit_length() - 1


class Rates:
    """Running means of the measured costs. Times are in seconds."""

    def __init__(self) -> None:
        self._prefill: dict[int, float] = {}
        """Seconds per token, by class of depth."""
        self._decode: dict[tuple[int, int], float] = {}
        """Seconds per step, by class of rows and of depth."""

    def learn_prefill(self, depth_tokens: int, tokens: int, seconds: float) -> None:
        """Records a chunk of `tokens` tokens, of all its prompts, that was prefilled behind
        `depth_tokens` in `seconds`."""
        least_tokens = _LEAST_TOKENS if self._prefill else 1
        if tokens >= least_tokens and seconds > 0:
            weight = _NEWEST * min(1.0, tokens / _FULL_TOKENS)
            _learn(self._prefill, depth_class(depth_tokens), seconds / tokens, weight)

    def learn_decode(self, rows: int, depth_tokens: int, seconds: float) -> None:
        """Records one decode step of `rows` rows, the longest of which has `depth_tokens` tokens,
        that took `seconds`."""
        if rows > 0 and seconds > 0:
            key = (_rows_class(rows), depth_class(depth_tokens))
            _learn(self._decode, key, seconds, _NEWEST)

    @property
    def knows_prefill(self) -> bool:
        return bool(self._prefill)

    def prefill_s_per_token(self, depth_tokens: int) -> float:
        """Returns the expected seconds per token of prefill at this depth."""
        if not self._prefill:
            return _PRIOR_S_PER_TOKEN
        wanted = depth_class(depth_tokens)
        nearest = min(self._prefill, key=lambda known: (abs(known - wanted), known))
        return self._prefill[nearest]

    def prefill_s(self, begin_tokens: int, end_tokens: int) -> float:
        """Returns the expected seconds to prefill a prompt from `begin_tokens` to `end_tokens`."""
        total_s, at = 0.0, begin_tokens
        while at < end_tokens:
            upper = class_begin_tokens(depth_class(at) + 1)
            upto = min(end_tokens, upper)
            total_s += (upto - at) * self.prefill_s_per_token(at)
            at = upto
        return total_s

    def prefill_rates(self) -> tuple[PrefillRate, ...]:
        return tuple(
            PrefillRate(class_begin_tokens(number), 1 / seconds)
            for number, seconds in sorted(self._prefill.items())
        )

    def decode_rates(self) -> tuple[DecodeRate, ...]:
        return tuple(
            DecodeRate(1 << rows, class_begin_tokens(depth), seconds)
            for (rows, depth), seconds in sorted(self._decode.items())
        )


def _learn(means: dict[KeyT, float], key: KeyT, value: float, weight: float) -> None:
    known = means.get(key, value)
    means[key] = known + weight * (value - known)
