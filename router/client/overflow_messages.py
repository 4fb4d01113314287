"""Recognizes third-party servers' errors for too long prompts, and reads the numbers in them.
Pure."""

import re

from node.protocol.overflow import Overflow

MAX_SEARCHED_CHARS = 2000
"""Searched part of a message, which may be as long as a response."""
_WORDS = re.compile(
    r"(?i)maximum context length"  # OpenAI, vLLM, node agents
    r"|exceeds? the (available context size|context length)"  # llama.cpp; Ollama
    r"|context the overflows|loaded with context length of only"  # LM Studio
    r"|prompt (is )?too long"  # Anthropic, node agents to its clients; oMLX
    r"|longer than the model's context length"  # SGLang
    r"|maximum prompt length is"  # xAI
)
_LIMIT = re.compile(
    r"(?i)(?:context (?:length|size|window)|prompt length)[^0-9]{0,40}(\d{1,12})(?!\d)"
)
_NUMBER = re.compile(r"(?<!\d)\d{1,12}(?!\d)")


def is_overflow(message: str) -> bool:
    """Returns True if the error message says that the prompt exceeds the context."""
    return _WORDS.search(message[:MAX_SEARCHED_CHARS]) is not None


def overflow_in(message: str) -> Overflow | None:
    """Reads prompt and context tokens from such a message; None if it does not have both. Some
    messages also give the parts of the prompt, so that the largest number is the total."""
    searched = message[:MAX_SEARCHED_CHARS]
    limit = _LIMIT.search(searched)
    if limit is None:
        return None
    context_tokens = int(limit[1])
    prompt_tokens = max(map(int, _NUMBER.findall(searched)))
    return Overflow(prompt_tokens, context_tokens) if prompt_tokens >= context_tokens else None
