"""Who is next, how much of a prompt is prefilled in one step, and which rows decode together.

Pure: every function takes what it needs to know and returns a decision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Self

from node.engine.decoding.rates import Rates
from node.ipc.messages import EngineSpec

USUAL_ANSWER_TOKENS = 1024
"""What a request without max_tokens is taken to answer."""
MIN_CHUNK_TOKENS = 16
CHUNK_STEP_TOKENS = 16
"""Chunks are multiples of this."""
FIRST_CHUNK_TOKENS = 64
"""While rows decode and nothing is known of the speed of prefill."""
IDLE_CHUNK_S = 0.5
"""What a chunk is planned to take while nothing decodes: a request that comes, or one that is
cancelled, waits for its end."""
IDLE_CHUNK_TOKENS = 128
"""Chunks are no smaller for that: short ones use a device badly."""
STALL_SHARE = 0.7
"""Of the allowed stall that a chunk is planned to take: it is measured with some error, and a
decode step comes on top."""
GROUP_TOKENS = 2048
"""Most tokens, padding included, of prompts that are prefilled together in one step."""
SHARED_TOKENS = 64
"""From so many tokens on, a prompt waits for another one that is prefilling the same prefix."""
CUT_SPACING_TOKENS = 1024
"""Least distance of two snapshots in the middle of a long prompt."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a prompt goes through the model in one step."""

    chunk_tokens: int
    """While nothing decodes."""
    decode_stall_target_s: float
    """Longest wait of decoding rows for one chunk."""
    score_bytes_per_pair: int = 0
    """What attention holds of each query of a chunk and each key; 0: nothing."""
    scratch_bytes: int = 0
    """Most that it may hold so."""

    @classmethod
    def of(cls, spec: EngineSpec) -> Self:
        """Those of an engine."""
        return cls(
            spec.prefill_chunk_tokens,
            spec.decode_stall_target_ms / 1000,
            spec.score_bytes_per_pair,
            spec.prefill_scratch_bytes,
        )


def urgency_s(remaining_s: float, waited_s: float) -> float:
    """The smaller, the sooner: shortest remaining prefill first, and each second of waiting makes
    up for a second of prefill, so that a long prompt is overtaken by short ones only for a time."""
    return remaining_s - waited_s


def chunk_tokens(
    limits: Limits, rates: Rates, depth_tokens: int, prompts: int, *, decoding: bool
) -> int:
    """Tokens of each of `prompts` prompts that are prefilled in the next step, behind
    `depth_tokens`."""
    most = most_tokens(limits, depth_tokens, prompts)
    if not rates.knows_prefill:
        return min(most, FIRST_CHUNK_TOKENS if decoding else IDLE_CHUNK_TOKENS)
    budget_s = STALL_SHARE * limits.decode_stall_target_s if decoding else IDLE_CHUNK_S
    tokens = int(budget_s / rates.prefill_s_per_token(depth_tokens) / prompts)
    tokens -= tokens % CHUNK_STEP_TOKENS
    return min(most, max(MIN_CHUNK_TOKENS if decoding else IDLE_CHUNK_TOKENS, tokens))


def most_tokens(limits: Limits, depth_tokens: int, prompts: int) -> int:
    """Of each of so many prompts, however quick they are."""
    most = limits.chunk_tokens // prompts
    if limits.score_bytes_per_pair:
        most = min(most, _scratch_tokens(limits, depth_tokens, prompts))
    return max(MIN_CHUNK_TOKENS, most)


def _scratch_tokens(limits: Limits, depth_tokens: int, prompts: int) -> int:
    """The longest chunk whose attention scores fit into the scratch, in whole steps."""
    pairs = limits.scratch_bytes // (limits.score_bytes_per_pair * prompts)
    # The positive root of chunk x (depth + chunk) = pairs.
    tokens = (isqrt(depth_tokens**2 + 4 * pairs) - depth_tokens) // 2
    return tokens - tokens % CHUNK_STEP_TOKENS


def may_group(rests: Sequence[int], depths: Sequence[int], rest: int, depth: int) -> bool:
    """Whether a prompt with `rest` tokens to prefill behind `depth` tokens goes along with others:
    all of them fit into one step, and padding them to the longest wastes little. One that has
    nothing left to prefill waits for nobody."""
    if not rests:
        return True
    if (rest == 0) != (max(rests) == 0):
        return False
    count = len(rests) + 1
    padded_rest = count * max(*rests, rest)
    padded_depth = count * max(*depths, depth)
    spare_depth = padded_depth - sum(depths) - depth
    return padded_rest <= GROUP_TOKENS and spare_depth <= GROUP_TOKENS


def choose_cuts(boundaries: Sequence[int], begin: int, end: int, most: int) -> tuple[int, ...]:
    """Where a prefill from `begin` to `end` stops for a snapshot: at most `most` of the
    boundaries. The last ones come first, since the next turn diverges there; then the first one,
    the system prompt that others share; then some in between, well apart. Where there is no
    boundary, the end."""
    inside = [at for at in boundaries if begin < at <= end] or [end]
    if end <= begin:
        return ()
    chosen: list[int] = []
    for at in (inside[-1], inside[0], *inside[-2:-1]):
        if at not in chosen:
            chosen.append(at)
    for at in reversed(inside[1:-2]):
        if all(abs(at - other) >= CUT_SPACING_TOKENS for other in chosen):
            chosen.append(at)
    return tuple(sorted(chosen[:most]))


@dataclass(frozen=True, slots=True)
class Companions:
    """Rows that decode, or will decode, as one batch: all are padded to the longest."""

    lengths: tuple[int, ...]
    """Tokens that each row is expected to reach."""

    def bytes(self, live_bytes: Callable[[int], int]) -> int:
        return len(self.lengths) * live_bytes(max(self.lengths)) if self.lengths else 0

    def padding_tokens(self, length: int) -> int:
        """Padding that one more row adds."""
        rows = (*self.lengths, length)
        before = len(self.lengths) * max(self.lengths, default=0) - sum(self.lengths)
        return len(rows) * max(rows) - sum(rows) - before


def place(
    batches: Sequence[Companions], length: int, pass_tokens: int, fits: Callable[[int | None], bool]
) -> int | None:
    """The batch that a row of `length` tokens joins; None for one of its own.

    One more batch is one more pass over the weights in each step, which costs as much as reading
    the KV of `pass_tokens` tokens: a row joins where its padding costs less than that, and where
    the padded batch `fits` into memory.
    """
    costs = [(batch.padding_tokens(length), index) for index, batch in enumerate(batches)]
    for padding, index in sorted(costs):
        if padding <= pass_tokens and fits(index):
            return index
    return None
