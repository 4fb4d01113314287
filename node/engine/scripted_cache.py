"""The toy prefix cache of the scripted engine."""

from dataclasses import dataclass

import msgspec

from node.types import CacheEvent, CacheEventKind


class ScriptedCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A toy prefix cache: it holds the most recent prompts and saves their prefill time."""

    capacity_tokens: int = 0
    """The lease may allow fewer, where the model says what a token takes."""
    trimmable: bool = True
    """Whether any common prefix can be reused, or only a stored prompt as a whole."""


@dataclass(slots=True)
class _Entry:
    number: int
    pinned: bool


class PrefixCache:
    """Prompts of the recent past, the least recently used dropped first, pinned ones never."""

    def __init__(self, settings: ScriptedCache) -> None:
        self._settings = settings
        self._capacity_tokens = settings.capacity_tokens
        self._prompts: dict[tuple[int, ...], _Entry] = {}
        self._last_number = 0
        self._events: list[CacheEvent] = []
        self.held_tokens = 0

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def pinned_tokens(self) -> int:
        """Of `held_tokens`, those that are never dropped."""
        return sum(len(prompt) for prompt, entry in self._prompts.items() if entry.pinned)

    def cached_tokens(self, tokens: tuple[int, ...]) -> int:
        """Tokens of the prompt that need no prefill; at least the last one always does."""
        reusable = _common_length if self._settings.trimmable else _whole_length
        lengths = {prompt: reusable(prompt, tokens) for prompt in self._prompts}
        best = max(lengths, key=lambda prompt: lengths[prompt], default=None)
        if best is None or lengths[best] == 0:
            return 0
        self._touch(best)
        return min(lengths[best], len(tokens) - 1)

    def store(self, uid: str, tokens: tuple[int, ...], *, pinned: bool = False) -> bool:
        """Keeps the request's prompt, unless it is larger than what is not pinned; whether it is
        kept."""
        if tokens in self._prompts:
            self._touch(tokens)
            self._prompts[tokens].pinned |= pinned
            return True
        if len(tokens) > self._capacity_tokens - self.pinned_tokens:
            return False
        self._last_number += 1
        self._prompts[tokens] = _Entry(self._last_number, pinned)
        self.held_tokens += len(tokens)
        self._tell(CacheEventKind.STORED, self._last_number, tokens, uid)
        self._evict()
        return True

    def limit(self, capacity_tokens: int) -> None:
        """Keeps within so many tokens from now on, and within the script's."""
        self._capacity_tokens = min(capacity_tokens, self._settings.capacity_tokens)
        self._evict()

    def clear(self) -> None:
        """Drops all prompts, pinned ones too."""
        for prompt in tuple(self._prompts):
            self._drop(prompt)

    def take_events(self) -> tuple[CacheEvent, ...]:
        """What has happened since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def _evict(self) -> None:
        loose = [prompt for prompt, entry in self._prompts.items() if not entry.pinned]
        for prompt in loose:
            if self.held_tokens <= self._capacity_tokens:
                return
            self._drop(prompt)

    def _drop(self, prompt: tuple[int, ...]) -> None:
        entry = self._prompts.pop(prompt)
        self.held_tokens -= len(prompt)
        self._tell(CacheEventKind.EVICTED, entry.number, prompt)

    def _touch(self, prompt: tuple[int, ...]) -> None:
        self._prompts[prompt] = self._prompts.pop(prompt)

    def _tell(
        self, kind: CacheEventKind, number: int, prompt: tuple[int, ...], uid: str = ""
    ) -> None:
        end_tokens = len(prompt)
        self._events.append(CacheEvent(kind, number, 0, 0, end_tokens, end_tokens, uid))


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
