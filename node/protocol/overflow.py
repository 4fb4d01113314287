"""A prompt that leaves no room for an answer, in the words by which clients know it.

Clients that compact a conversation by themselves recognise some servers' sentences, and read the
numbers in them.
"""

from typing import NamedTuple, Self

ANTHROPIC_WORDS = "prompt is too long"
LONGEST_TOKEN_BYTES = 256
"""No token stands for more of a prompt on the whole: the longest of most vocabularies are 128
spaces."""
GUESSED_TOKEN_BYTES = 4
"""What a token stands for in English, or in code."""


class Overflow(NamedTuple):
    """How long a prompt is, and what there is room for."""

    prompt_tokens: int
    context_tokens: int
    """Of the prompt and its answer."""

    @classmethod
    def by_size(cls, prompt_bytes: int, context_tokens: int) -> Self | None:
        """Of a prompt of so many bytes that cannot fit whatever they say, for whoever has no
        tokeniser: its tokens are a guess. None where it may fit."""
        if prompt_bytes < context_tokens * LONGEST_TOKEN_BYTES:
            return None
        return cls(prompt_bytes // GUESSED_TOKEN_BYTES, context_tokens)

    @property
    def openai(self) -> str:
        """As OpenAI's own server begins it, which is what many clients look for."""
        return (
            f"This model's maximum context length is {self.context_tokens} tokens, but the prompt "
            f"has {self.prompt_tokens} tokens, and an answer needs one more."
        )

    @property
    def anthropic(self) -> str:
        """Anthropic's own sentence, word for word and nothing else: Claude Code compacts where it
        reads it, and by how much the two numbers differ."""
        longest_tokens = self.context_tokens - 1
        return f"{ANTHROPIC_WORDS}: {self.prompt_tokens} tokens > {longest_tokens} maximum"
