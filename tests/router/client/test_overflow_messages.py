from __future__ import annotations

import pytest

from node.protocol.overflow import Overflow
from router.client.overflow_messages import is_overflow, overflow_in

SAID = {
    "vllm": "This model's maximum context length is 8 tokens. However, you requested 11 tokens "
    "(9 in the messages, 2 in the completion).",
    "llama.cpp": "request (11 tokens) exceeds the available context size (8 tokens), try "
    "increasing it",
    "lm studio": "Trying to keep the first 11 tokens when context the overflows. However, the "
    "model is loaded with context length of only 8 tokens, which is not enough.",
    "omlx": "Prompt too long: 11 tokens exceeds max context window of 8 tokens",
    "sglang": "The input (11 tokens) is longer than the model's context length (8 tokens).",
    "xai": "This model's maximum prompt length is 8 but the request contains 11 tokens.",
    "node agent": Overflow(11, 8).openai,
}


@pytest.mark.parametrize("server", SAID)
def test_the_lengths_are_read_out_of_each_server_s_words(server: str) -> None:
    assert is_overflow(SAID[server])
    assert overflow_in(SAID[server]) == Overflow(11, 8)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "the input length exceeds the context length",
        "This model's maximum context length is 8 tokens.9",
        "maximum context length is 8 tokens, and 7 are asked for",
        "maximum context length is " + "9" * 5000,
        "x" * 3000 + SAID["vllm"],
    ],
)
def test_lengths_that_are_not_reported_or_make_no_sense_are_not_known(message: str) -> None:
    found = overflow_in(message)
    assert found is None or found.prompt_tokens >= found.context_tokens


def test_another_error_is_none() -> None:
    assert not is_overflow("The model is busy.")
