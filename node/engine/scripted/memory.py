"""The memory of a scripted engine: its lease, the level of memory pressure, and its toy cache."""

from node.engine.scripted.cache import ScriptedCache, ScriptedPrefixCache
from node.engine.stored_cap import StoredCap, StoredKv
from node.ipc.generate import GenerateRequest
from node.ipc.messages import CacheEvent, MemoryLease, Pressure


class ScriptedMemory:
    """Owner of the prefix cache, which stays within the lease and shrinks under pressure."""

    def __init__(
        self, settings: ScriptedCache, token_bytes: int, lease: MemoryLease | None, now_s: float
    ) -> None:
        """`token_bytes` is the assumed size of a token's KV; 0 if the script sets none."""
        self.lease = lease
        self.pressure = Pressure.NONE
        self.cap_bytes: int | None = None
        """Limit of stored KV due to memory pressure; None if there is none."""
        self._settings = settings
        self._token_bytes = token_bytes
        self._prompts = ScriptedPrefixCache(settings)
        self._cap = StoredCap()
        self._limit(now_s)

    @property
    def entries(self) -> int:
        return len(self._prompts)

    @property
    def stored_bytes(self) -> int:
        return self._prompts.stored_tokens * self._token_bytes

    @property
    def pinned_bytes(self) -> int:
        return self._prompts.pinned_tokens * self._token_bytes

    def live_bytes(self, tokens: int) -> int:
        """Returns the bytes of a running row's KV."""
        return tokens * self._token_bytes

    def cached_tokens(self, request: GenerateRequest) -> int:
        """Returns the number of prompt tokens that need no prefill."""
        return self._prompts.cached_tokens(request.tokens, request.salt)

    def store(self, request: GenerateRequest, now_s: float) -> bool:
        """Stores the prompt; returns True if it is stored."""
        self._cap.note_session(request.uid, len(request.tokens) * (self._token_bytes or 1))
        self.refresh(now_s)
        return self._prompts.store(request)

    def set_lease(self, lease: MemoryLease, now_s: float) -> None:
        self.lease = lease
        self._limit(now_s)

    def set_pressure(self, level: Pressure, now_s: float) -> None:
        self.pressure = level
        self._limit(now_s)

    def refresh(self, now_s: float) -> None:
        """Adapts the limit of stored KV to the time that has passed under pressure."""
        if not self._cap.is_unlimited:
            self._limit(now_s)

    def due_s(self) -> float | None:
        """Returns the time of the next change of that limit."""
        return self._cap.due_s()

    def clear(self) -> None:
        """Drops all stored prompts, pinned ones too."""
        self._prompts.clear()

    def take_events(self) -> tuple[CacheEvent, ...]:
        """Returns the cache's events since the last call."""
        return self._prompts.take_events()

    def _limit(self, now_s: float) -> None:
        # If the script sets no size of a token, the cap counts tokens.
        each_bytes = self._token_bytes or 1
        most_bytes = self._settings.capacity_tokens * each_bytes
        if self.lease is not None and self._token_bytes:
            most_bytes = min(most_bytes, self.lease.stored_kv_bytes)
        prompts = self._prompts
        stored = StoredKv(
            prompts.stored_tokens * each_bytes, prompts.pinned_tokens * each_bytes, most_bytes
        )
        self.cap_bytes = self._cap.update(self.pressure, stored, now_s)
        prompts.limit((most_bytes if self.cap_bytes is None else self.cap_bytes) // each_bytes)
