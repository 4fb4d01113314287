"""The messages by which clients know that a prompt is too long."""

import re

import pytest

from node.protocol.overflow import LONGEST_TOKEN_BYTES, Overflow

CLAUDE_CODE = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.IGNORECASE)
"""The pattern by which Claude Code reads the two numbers."""


@pytest.mark.parametrize(("prompt", "most"), [(64, 63), (64, 8), (200_001, 200_000)])
def test_claude_code_reads_by_how_much_a_prompt_is_too_long(prompt: int, most: int) -> None:
    message = Overflow(prompt, most + 1).anthropic
    assert message == f"prompt is too long: {prompt} tokens > {most} maximum"
    found = CLAUDE_CODE.fullmatch(message.removesuffix(" maximum"))
    assert found and (int(found[1]), int(found[2])) == (prompt, most)


def test_without_a_tokenizer_only_what_cannot_fit_is_too_long() -> None:
    assert Overflow.by_size(8 * LONGEST_TOKEN_BYTES - 1, 8) is None
    found = Overflow.by_size(8 * LONGEST_TOKEN_BYTES, 8)
    assert found is not None and found.prompt_tokens > found.context_tokens == 8


def test_openai_s_clients_find_openai_s_words() -> None:
    message = Overflow(9, 8).openai
    assert message.startswith("This model's maximum context length is 8 tokens")
    assert message.endswith(".") and " 9 tokens" in message
