"""The policies of scheduling: order of prompts, size of chunks, grouping of rows, snapshots.

Pure: every function takes its inputs as arguments and returns a decision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Self

from node.engine.decoding.rates import Rates
from node.ipc.messages import EngineSpec

USUAL_OUTPUT_TOKENS = 1024
"""Assumed length of an output without max_tokens."""
MIN_CHUNK_TOKENS = 16
CHUNK_STEP_TOKENS = 16
"""Chunks are multiples of this."""
FIRST_CHUNK_TOKENS = 64
"""Size of a chunk while rows decode and the speed of prefill is not known."""
IDLE_CHUNK_S = 0.5
"""Planned seconds of a chunk while no row decodes: new requests and cancellations wait for its
end."""
IDLE_CHUNK_TOKENS = 128
"""Least size of a chunk while no row decodes, since short chunks use a device badly."""
STALL_SHARE = 0.7
"""Share of the allowed stall that a chunk is planned to take: the speed is measured with some
error, and a decode step follows."""
GROUP_TOKENS = 2048
"""Most tokens, padding included, of prompts that are prefilled together in one step."""
SHARED_TOKENS = 64
"""Least length of a shared prefix for which a prompt waits until another row has prefilled it."""
CHECKPOINT_SPACING_TOKENS = 1024
"""Least distance in tokens between two snapshots in the middle of a long prompt."""


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Limits on the size of a prefill chunk."""

    chunk_tokens: int
    """Most tokens of all prompts in one chunk."""
    decode_stall_target_s: float
    """Longest time that decoding rows should wait for one chunk."""
    score_bytes_per_pair: int = 0
    """Bytes that attention allocates per pair of a chunk's query and a key; 0 if none."""
    scratch_bytes: int = 0
    """Most bytes that attention may allocate in this way."""

    @classmethod
    def of(cls, spec: EngineSpec) -> Self:
        """Returns the limits that an engine's spec sets."""
        return cls(
            spec.prefill_chunk_tokens,
            spec.decode_stall_target_ms / 1000,
            spec.score_bytes_per_pair,
            spec.prefill_scratch_bytes,
        )


def urgency_s(remaining_s: float, waited_s: float) -> float:
    """Returns the urgency of a prompt; the smallest value is served first. The shortest remaining
    prefill goes first, and each second of waiting outweighs a second of prefill, so that short
    prompts overtake a long one only for a limited time."""
    return remaining_s - waited_s


def chunk_tokens(
    limits: ChunkLimits, rates: Rates, depth_tokens: int, prompts: int, *, decoding: bool
) -> int:
    """Returns the number of tokens of each of `prompts` prompts for the next step, which follow
    `depth_tokens` processed ones. `decoding` is True if rows decode meanwhile."""
    most = max_chunk_tokens(limits, depth_tokens, prompts)
    if not rates.knows_prefill:
        return min(most, FIRST_CHUNK_TOKENS if decoding else IDLE_CHUNK_TOKENS)
    budget_s = STALL_SHARE * limits.decode_stall_target_s if decoding else IDLE_CHUNK_S
    tokens = int(budget_s / rates.prefill_s_per_token(depth_tokens) / prompts)
    tokens -= tokens % CHUNK_STEP_TOKENS
    return min(most, max(MIN_CHUNK_TOKENS if decoding else IDLE_CHUNK_TOKENS, tokens))


def max_chunk_tokens(limits: ChunkLimits, depth_tokens: int, prompts: int) -> int:
    """Returns the most tokens per prompt of a chunk, regardless of speed."""
    most = limits.chunk_tokens // prompts
    if limits.score_bytes_per_pair:
        most = min(most, _scratch_tokens(limits, depth_tokens, prompts))
    return max(MIN_CHUNK_TOKENS, most)


def _scratch_tokens(limits: ChunkLimits, depth_tokens: int, prompts: int) -> int:
    """Returns the longest chunk whose attention scores fit into the scratch memory, as a multiple
    of `CHUNK_STEP_TOKENS`."""
    pairs = limits.scratch_bytes // (limits.score_bytes_per_pair * prompts)
    # The positive root of chunk x (depth + chunk) = pairs.
    tokens = (isqrt(depth_tokens**2 + 4 * pairs) - depth_tokens) // 2
    return tokens - tokens % CHUNK_STEP_TOKENS


def may_group(rests: Sequence[int], depths: Sequence[int], rest: int, depth: int) -> bool:
    """True if a prompt with `rest` tokens to prefill behind `depth` tokens may join a group of
    others, given by `rests` and `depths`: all fit into one step, and padding them to the longest
    wastes little. A prompt without tokens to prefill never waits for others that have some."""
    if not rests:
        return True
    if (rest == 0) != (max(rests) == 0):
        return False
    count = len(rests) + 1
    padded_rest = count * max(*rests, rest)
    padded_depth = count * max(*depths, depth)
    spare_depth = padded_depth - sum(depths) - depth
    return padded_rest <= GROUP_TOKENS and spare_depth <= GROUP_TOKENS


def choose_checkpoints(
    boundaries: Sequence[int], begin: int, end: int, most: int
) -> tuple[int, ...]:
    """Returns the positions where a prefill from `begin` to `end` stops for a snapshot: at most
    `most` of the boundaries, in ascending order. The last ones have precedence, since the next turn
    diverges there; then the first one, the system prompt that others share; then some in between,
    spaced apart. Without boundaries it is the end."""
    inside = [at for at in boundaries if begin < at <= end] or [end]
    if end <= begin:
        return ()
    chosen: list[int] = []
    for at in (inside[-1], inside[0], *inside[-2:-1]):
        if at not in chosen:
            chosen.append(at)
    for at in reversed(inside[1:-2]):
        if all(abs(at - other) >= CHECKPOINT_SPACING_TOKENS for other in chosen):
            chosen.append(at)
    return tuple(sorted(chosen[:most]))


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The rows of one decode batch, at present or as planned: all are padded to the longest."""

    lengths: tuple[int, ...]
    """Expected final length of each row in tokens."""

    def bytes(self, live_bytes: Callable[[int], int]) -> int:
        return len(self.lengths) * live_bytes(max(self.lengths)) if self.lengths else 0

    def padding_tokens(self, length: int) -> int:
        """Returns the tokens of padding that one more row of this length adds."""
        rows = (*self.lengths, length)
        before = len(self.lengths) * max(self.lengths, default=0) - sum(self.lengths)
        return len(rows) * max(rows) - sum(rows) - before


def place(
    batches: Sequence[BatchShape], length: int, pass_tokens: int, fits: Callable[[int | None], bool]
) -> int | None:
    """Returns the index of the batch that a row of `length` tokens joins; None for a new batch.

    One more batch is one more pass over the weights in each step, which costs as much as reading
    the KV of `pass_tokens` tokens. So a row joins the batch with the least padding, if that costs
    no more and if the padded batch `fits` into memory.
    """
    costs = [(batch.padding_tokens(length), index) for index, batch in enumerate(batches)]
    for padding, index in sorted(costs):
        if padding <= pass_tokens and fits(index):
            return index
    return None
