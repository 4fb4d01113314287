"""Tests an engine's refusals for length and for memory, with the numbers that clients want."""

import pytest

from node.engine.scheduling.refusals import refused_length, refused_size, refused_under_pressure
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Loaded, MemoryLease, Refused
from node.protocol.overflow import Overflow

INFO = Loaded(weight_bytes=1, context_tokens=8, max_rows=1, vocab_size=10)


def request_of(length: int) -> GenerateRequest:
    return GenerateRequest("u", (1,) * length, 1)


@pytest.mark.parametrize("length", [8, 9, 800])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_an_overflow(length: int) -> None:
    overflow = Overflow(length, 8)
    refused = Refused("u", overflow.openai, "messages", overflow)
    assert refused_length(request_of(length), INFO) == refused


def test_an_empty_prompt_is_refused_and_one_with_room_is_not() -> None:
    refused = refused_length(request_of(0), INFO)
    assert refused is not None and refused.overflow is None
    assert refused_length(request_of(7), INFO) is None


def test_what_the_memory_can_never_hold_is_an_overflow_that_names_the_remedy() -> None:
    assert refused_size(request_of(4), 5) is None
    refused = refused_size(request_of(5), 5)
    assert refused is not None and refused.overflow == Overflow(5, 5)
    assert refused.reason.startswith(Overflow(5, 5).openai)
    assert "--memory-limit" in refused.reason


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "choices", "is_refused"),
    [
        (2000, 48, 1, False),
        (2000, 49, 1, True),
        (1024, None, 1, False),
        (1025, None, 1, True),
        (1024, 32_000, 1, False),
        (512, 512, 2, False),
        (512, 513, 2, True),
    ],
)
def test_very_short_of_memory_an_eighth_of_the_live_kv_is_the_most(
    prompt_tokens: int, max_tokens: int | None, choices: int, *, is_refused: bool
) -> None:
    lease = MemoryLease(1 << 30, live_kv_bytes=8 * 2048 * 1024, stored_kv_bytes=0)
    request = GenerateRequest(
        "r", tokens=tuple(range(prompt_tokens)), max_tokens=max_tokens, choices=choices
    )
    refused = refused_under_pressure(request, lambda tokens: 1024 * tokens, lease)
    assert (refused is not None) == is_refused
    if refused is not None:
        assert refused.is_short and "up to 2 MiB are accepted" in refused.reason
    assert (
        refused_under_pressure(request, lambda tokens: 1024 * tokens, MemoryLease(0, 0, 0)) is None
    )
