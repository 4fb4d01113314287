"""Decisions of the scheduler, from numbers."""

import pytest

from node.engine.decoding.chunking import (
    CHECKPOINT_SPACING_TOKENS,
    FIRST_CHUNK_TOKENS,
    IDLE_CHUNK_TOKENS,
    MIN_CHUNK_TOKENS,
    BatchShape,
    ChunkLimits,
    choose_checkpoints,
    chunk_tokens,
    may_group,
    place,
    urgency_s,
)
from node.engine.decoding.rates import Rates

LIMITS = ChunkLimits(chunk_tokens=2048, decode_stall_target_s=0.2)


def known(s_per_token: float) -> Rates:
    rates = Rates()
    rates.learn_prefill(0, 1000, 1000 * s_per_token)
    return rates


def test_the_shortest_rest_is_first_until_a_longer_one_has_waited_for_the_difference() -> None:
    assert urgency_s(1.0, waited_s=0.0) < urgency_s(30.0, waited_s=28.0)
    assert urgency_s(1.0, waited_s=0.0) > urgency_s(30.0, waited_s=29.5)


@pytest.mark.parametrize(
    ("s_per_token", "prompts", "tokens"),
    [
        # 70 % of 200 ms.
        (1e-3, 1, 128),
        (1e-4, 1, 1392),
        (1e-5, 1, 2048),
        (1e-3, 2, 64),
        (1e-1, 1, MIN_CHUNK_TOKENS),
    ],
)
def test_a_chunk_beside_decoding_sequences_keeps_within_the_stall_target(
    s_per_token: float, prompts: int, tokens: int
) -> None:
    assert chunk_tokens(LIMITS, known(s_per_token), 0, prompts, decoding=True) == tokens


def test_deeper_chunks_are_shorter_where_they_cost_more() -> None:
    rates = known(1e-4)
    rates.learn_prefill(40_000, 1000, 1.0)
    assert chunk_tokens(LIMITS, rates, 40_000, 1, decoding=True) == 128


@pytest.mark.parametrize("depth_tokens", [0, 1000, 8000, 100_000, 1_000_000])
@pytest.mark.parametrize("prompts", [1, 3])
@pytest.mark.parametrize("decoding", [False, True])
def test_the_attention_scores_of_a_chunk_fit_into_the_scratch(
    depth_tokens: int, prompts: int, decoding: bool
) -> None:
    # 16 heads, of which each score is there twice in 16 bits.
    limits = ChunkLimits(2048, 0.2, score_bytes_per_pair=16 * 4, scratch_bytes=1 << 29)
    for rates in (known(1e-6), Rates()):
        tokens = chunk_tokens(limits, rates, depth_tokens, prompts, decoding=decoding)
        score_bytes = 16 * prompts * tokens * (depth_tokens + tokens) * 4
        assert score_bytes <= 1 << 29 or tokens == MIN_CHUNK_TOKENS
        assert tokens >= MIN_CHUNK_TOKENS


def test_scratch_that_is_enough_shortens_no_chunk() -> None:
    limits = ChunkLimits(2048, 0.2, score_bytes_per_pair=16 * 4, scratch_bytes=1 << 29)
    assert chunk_tokens(limits, known(1e-6), 1000, 1, decoding=False) == 2048
    # The longest whole step with chunk x (10,000 + chunk) x 64 B within 512 MiB.
    assert chunk_tokens(limits, known(1e-6), 10_000, 1, decoding=False) == 768


def test_an_idle_engine_prefills_half_a_second_at_a_time() -> None:
    assert chunk_tokens(LIMITS, known(1e-3), 0, 1, decoding=False) == 496
    assert chunk_tokens(LIMITS, known(1e-5), 0, 1, decoding=False) == 2048
    assert chunk_tokens(LIMITS, known(1e-1), 0, 1, decoding=False) == IDLE_CHUNK_TOKENS


def test_the_first_chunk_of_all_is_short() -> None:
    assert chunk_tokens(LIMITS, Rates(), 0, 1, decoding=True) == FIRST_CHUNK_TOKENS
    assert chunk_tokens(LIMITS, Rates(), 0, 1, decoding=False) == IDLE_CHUNK_TOKENS


def test_short_prompts_are_batched_and_long_ones_are_not() -> None:
    assert may_group([], [], 50_000, 0)
    assert may_group([30] * 15, [0] * 15, 40, 0)
    assert not may_group([30] * 15, [0] * 15, 200, 0), "padding"
    assert not may_group([1500], [0], 1500, 0)


def test_prompts_of_unlike_depth_are_not_batched() -> None:
    assert may_group([30], [40_000], 30, 39_000)
    assert not may_group([30], [40_000], 30, 100), "it would be padded to 40,000 tokens"


def test_a_prompt_that_is_cached_whole_does_not_wait_for_others() -> None:
    assert may_group([0], [100], 0, 90)
    assert not may_group([0], [100], 5, 90)
    assert not may_group([5, 7], [100, 100], 0, 90)


@pytest.mark.parametrize(
    ("boundaries", "most", "checkpoints"),
    [
        ((), 3, (9000,)),
        ((100,), 3, (100,)),
        ((100, 5000, 8000), 0, ()),
        ((100, 5000, 8000), 1, (8000,)),
        ((100, 5000, 8000), 2, (100, 8000)),
        ((100, 5000, 8000), 3, (100, 5000, 8000)),
        ((100, 150, 200, 3000, 8000, 8100), 8, (100, 3000, 8000, 8100)),
        ((100, 8000, 9500), 8, (100, 8000)),
    ],
)
def test_cuts_are_the_last_boundaries_the_first_one_and_some_between(
    boundaries: tuple[int, ...], most: int, checkpoints: tuple[int, ...]
) -> None:
    assert choose_checkpoints(boundaries, 10, 9000, most) == checkpoints
    inner = [a - b for a, b in zip(checkpoints[2:-1], checkpoints[1:-2], strict=True)]
    assert all(distance >= CHECKPOINT_SPACING_TOKENS for distance in inner)


def test_what_is_restored_needs_no_cut() -> None:
    assert choose_checkpoints((100, 500), 500, 500, 4) == ()
    assert choose_checkpoints((100, 500), 100, 600, 4) == (500,)


def test_padding_is_counted_for_all_rows_of_a_batch() -> None:
    batch = BatchShape((100, 400))
    assert batch.padding_tokens(400) == 0
    assert batch.padding_tokens(300) == 100
    assert batch.padding_tokens(1000) == 2 * 600
    assert BatchShape(()).padding_tokens(7) == 0
    assert batch.bytes(lambda tokens: 10 * tokens) == 8000


def test_a_sequence_joins_where_it_is_padded_least() -> None:
    batches = [BatchShape((100,) * 3), BatchShape((5000,))]
    assert place(batches, 4900, 1 << 20, lambda index: True) == 1
    assert place(batches, 120, 1 << 20, lambda index: True) == 0


def test_a_sequence_gets_a_pass_of_its_own_where_padding_costs_more_or_does_not_fit() -> None:
    batches = [BatchShape((100,) * 3)]
    assert place(batches, 60_000, 100_000, lambda index: True) is None
    assert place(batches, 60_000, 1 << 20, lambda index: True) == 0
    assert place(batches, 60_000, 1 << 20, lambda index: False) is None
    assert place([], 100, 1 << 20, lambda index: True) is None
