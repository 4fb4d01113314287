"""The toy prefix cache of the scripted engine."""

from dataclasses import dataclass

import msgspec

from node.ipc.generate import GenerateRequest
from node.ipc.messages import CacheEvent, CacheEventKind


class ScriptedCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a toy prefix cache: it stores the most recent prompts and saves their prefill
    time."""

    capacity_tokens: int = 0
    """The lease may allow fewer, if the model's `kv_bytes_per_token` is set."""
    trimmable: bool = True
    """True if any common prefix can be reused, False if only whole stored prompts can."""


_Key = tuple[str, tuple[int, ...]]
"""The salt and the tokens of a prompt."""


@dataclass(slots=True)
class _Entry:
    number: int
    pinned: bool


class ScriptedPrefixCache:
    """Recent prompts. The least recently used are evicted first, pinned ones never."""

    def __init__(self, settings: ScriptedCache) -> None:
        self._settings = settings
        self._capacity_tokens = settings.capacity_tokens
        self._prompts: dict[_Key, _Entry] = {}
        self._last_number = 0
        self._events: list[CacheEvent] = []
        self.stored_tokens = 0

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def pinned_tokens(self) -> int:
        """Tokens within `stored_tokens` that are never evicted."""
        return sum(len(tokens) for (_, tokens), entry in self._prompts.items() if entry.pinned)

    def cached_tokens(self, tokens: tuple[int, ...], salt: str) -> int:
        """Returns the number of prompt tokens that need no prefill; the last token always needs
        it."""
        reusable = _common_length if self._settings.trimmable else _whole_length
        lengths = {key: reusable(key[1], tokens) for key in self._prompts if key[0] == salt}
        best = max(lengths, key=lambda key: lengths[key], default=None)
        if best is None or lengths[best] == 0:
            return 0
        self._touch(best)
        return min(lengths[best], len(tokens) - 1)

    def store(self, request: GenerateRequest) -> bool:
        """Stores the request's prompt, pinned for a warm request, unless it exceeds the unpinned
        capacity. Returns True if it is stored."""
        key, tokens = (request.salt, request.tokens), request.tokens
        if key in self._prompts:
            self._touch(key)
            self._prompts[key].pinned |= request.warm
            return True
        if len(tokens) > self._capacity_tokens - self.pinned_tokens:
            return False
        self._last_number += 1
        self._prompts[key] = _Entry(self._last_number, request.warm)
        self.stored_tokens += len(tokens)
        self._note(CacheEventKind.STORED, self._last_number, tokens, request.uid)
        self._evict()
        return True

    def limit(self, capacity_tokens: int) -> None:
        """Sets the capacity to `capacity_tokens`, or to the script's if that is less."""
        self._capacity_tokens = min(capacity_tokens, self._settings.capacity_tokens)
        self._evict()

    def clear(self) -> None:
        """Evicts all prompts, pinned ones too."""
        for key in tuple(self._prompts):
            self._drop(key)

    def take_events(self) -> tuple[CacheEvent, ...]:
        """Returns the events since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def _evict(self) -> None:
        loose = [key for key, entry in self._prompts.items() if not entry.pinned]
        for key in loose:
            if self.stored_tokens <= self._capacity_tokens:
                return
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        entry, tokens = self._prompts.pop(key), key[1]
        self.stored_tokens -= len(tokens)
        self._note(CacheEventKind.EVICTED, entry.number, tokens)

    def _touch(self, key: _Key) -> None:
        self._prompts[key] = self._prompts.pop(key)

    def _note(
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
    # A snapshot cannot be cut, so one as long as the prompt would leave no token to compute.
    is_prefix = len(prompt) < len(tokens) and tokens[: len(prompt)] == prompt
    return len(prompt) if is_prefix else 0
