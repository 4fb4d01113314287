"""The toy prefix cache of the scripted engine."""

import msgspec


class ScriptedCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A toy prefix cache: it holds the most recent prompts and saves their prefill time."""

    capacity_tokens: int = 0
    trimmable: bool = True
    """Whether any common prefix can be reused, or only a stored prompt as a whole."""


class PrefixCache:
    """Prompts of the recent past, the least recently used dropped first."""

    def __init__(self, settings: ScriptedCache) -> None:
        self._settings = settings
        self._prompts: dict[tuple[int, ...], None] = {}
        self._held_tokens = 0

    def cached_tokens(self, tokens: tuple[int, ...]) -> int:
        """Tokens of the prompt that need no prefill; at least the last one always does."""
        reusable = _common_length if self._settings.trimmable else _whole_length
        lengths = {prompt: reusable(prompt, tokens) for prompt in self._prompts}
        best = max(lengths, key=lambda prompt: lengths[prompt], default=None)
        if best is None or lengths[best] == 0:
            return 0
        self._touch(best)
        return min(lengths[best], len(tokens) - 1)

    def store(self, tokens: tuple[int, ...]) -> None:
        """Keeps a prompt, unless it is larger than the whole cache."""
        if len(tokens) > self._settings.capacity_tokens:
            return
        if tokens in self._prompts:
            self._touch(tokens)
            return
        self._prompts[tokens] = None
        self._held_tokens += len(tokens)
        while self._held_tokens > self._settings.capacity_tokens:
            oldest = next(iter(self._prompts))
            del self._prompts[oldest]
            self._held_tokens -= len(oldest)

    def _touch(self, prompt: tuple[int, ...]) -> None:
        self._prompts[prompt] = self._prompts.pop(prompt)


def _common_length(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    pairs = zip(prompt, tokens, strict=False)
    return next(
        (index for index, (left, right) in enumerate(pairs) if left != right),
        min(len(prompt), len(tokens)),
    )


def _whole_length(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    # A snapshot cannot be cut, so one as long as the prompt leaves no token to compute.
    is_prefix = len(prompt) < len(tokens) and tokens[: len(prompt)] == prompt
    return len(prompt) if is_prefix else 0
