"""The error for a prompt that leaves no room for a response, in the words that clients recognize.

Clients that compact a conversation by themselves match some servers' sentences, and read the
numbers in them.
"""

from typing import NamedTuple, Self

ANTHROPIC_WORDS = "prompt is too long"
LONGEST_TOKEN_BYTES = 256
"""Most bytes per token over a whole prompt: the longest tokens of most vocabularies are 128
spaces."""
GUESSED_TOKEN_BYTES = 4
"""Average bytes per token of English text or code."""


class Overflow(NamedTuple):
    """The size of a prompt, and of the context that it exceeds."""

    prompt_tokens: int
    context_tokens: int
    """Room for the prompt and its response."""

    @classmethod
    def by_size(cls, prompt_bytes: int, context_tokens: int) -> Self | None:
        """The overflow of a prompt of so many bytes that cannot fit whatever it says, for callers
        without a tokenizer: its number of tokens is an estimate. None if it may fit."""
        if prompt_bytes < context_tokens * LONGEST_TOKEN_BYTES:
            return None
        return cls(prompt_bytes // GUESSED_TOKEN_BYTES, context_tokens)

    @property
    def openai(self) -> str:
        """The sentence begins as that of OpenAI's own server, which many clients match."""
        return (
            f"This model's maximum context length is {self.context_tokens} tokens, but the "
            f"prompt has {self.prompt_tokens} tokens, and a response needs one more."
        )

    @property
    def anthropic(self) -> str:
        """Anthropic's own sentence, word for word and nothing else: Claude Code compacts when it
        reads it, by the difference of the two numbers."""
        longest_tokens = self.context_tokens - 1
        return f"{ANTHROPIC_WORDS}: {self.prompt_tokens} tokens > {longest_tokens} maximum"
