"""In which words servers of others say that a prompt is too long, and the numbers in them. Pure."""

import re

from node.protocol.overflow import Overflow

MAX_SEARCHED_CHARS = 2000
"""Of a message, which may be as long as an answer."""
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
    """Whether the message of an error says that."""
    return _WORDS.search(message[:MAX_SEARCHED_CHARS]) is not None


def overflow_in(message: str) -> Overflow | None:
    """The numbers in such a message; None where it does not have both. Some tell the parts of a
    prompt, too: the largest number is that of all."""
    said = message[:MAX_SEARCHED_CHARS]
    limit = _LIMIT.search(said)
    if limit is None:
        return None
    context_tokens = int(limit[1])
    prompt_tokens = max(map(int, _NUMBER.findall(said)))
    return Overflow(prompt_tokens, context_tokens) if prompt_tokens >= context_tokens else None
