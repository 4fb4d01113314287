"""A node in virtual time: one prefill at once, in the order of arrival, and rows that are decoded
together."""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from router.simulator.cache import Cache, CachedPath
from router.simulator.fleet import NodeSpec, models_on_disk
from router.simulator.workload import SimulatedCall


@dataclass(slots=True)
class Job:
    """A call with the times of its progress."""

    call: SimulatedCall
    arrived_s: float
    node: int = -1
    sent_s: float = math.nan
    """When it was sent to its node."""
    began_s: float = math.nan
    """When its prefill, or the load or restore before it, began."""
    prefill_s: float = 0.0
    first_s: float = math.nan
    """When its first token came."""
    ended_s: float = math.nan
    cached_tokens: int = 0


class JobBegan(NamedTuple):
    job: Job
    reach: CachedPath


class FirstToken(NamedTuple):
    job: Job


class JobEnded(NamedTuple):
    job: Job


JobEvent = JobBegan | FirstToken | JobEnded


class Node:
    """Owner of one simulated node's state. Time is passed in and never goes back."""

    def __init__(self, number: int, spec: NodeSpec, models: tuple[str, ...]) -> None:
        self.number = number
        self.spec = spec
        on_disk = models_on_disk(number, spec, models)
        self.models = [each for each in models if each in on_disk]
        """Models on the node's disk."""
        self.version = 0
        """Changes with every event, which invalidates the events that were planned before."""
        self.in_flight = 0
        self.busy_s = 0.0
        """Seconds spent on prefill, loads and restores."""
        self.ready_s: dict[str, float] = dict.fromkeys(
            on_disk[: spec.resident_models], -spec.min_residency_s
        )
        """When each resident model is loaded, the least recently used first."""
        self.loads = 0
        self._retry_s = math.inf
        """When a model that had to wait may be loaded."""
        self._caches: dict[str, Cache] = {}
        self._queue: deque[Job] = deque()
        self._prefilling: Job | None = None
        self._prefill_ends_s = math.inf
        self._rows: list[tuple[float, int, Job]] = []
        """Running rows, ordered by the value of `_decoded` at which they end."""
        self._decoded = 0.0
        """Tokens that a row which ran from the beginning would have."""
        self._decoded_at_s = 0.0

    # --- reading ---

    def cache(self, model: str) -> Cache:
        cache = self._caches.get(model)
        if cache is None:
            spec = self.spec
            cache = self._caches[model] = Cache(
                spec.cache_tokens,
                disk_tokens=spec.disk_tokens,
                slots=spec.cache_slots,
                snapshot_only=spec.snapshot_only,
            )
        return cache

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> tuple[Job, ...]:
        return tuple(self._queue)

    @property
    def prefill_ends_s(self) -> float:
        """Infinite if nothing is prefilled."""
        return self._prefill_ends_s

    def usable(self, call: SimulatedCall) -> CachedPath:
        """The cached part of the call's prompt, without its last token, which is always
        computed."""
        reach = self.cache(call.model).reach(call.path, call.ends)
        if reach.tokens < call.prompt_tokens:
            return reach
        most = call.prompt_tokens - 1
        return CachedPath(reach.positions, most, min(reach.memory_tokens, most))

    def service_s(self, call: SimulatedCall, reach: CachedPath) -> float:
        """Seconds of restore and prefill on an otherwise idle node."""
        spec = self.spec
        restore_s = (reach.tokens - reach.memory_tokens) / spec.restore_tokens_per_s
        return restore_s + spec.prefill_s(reach.tokens, call.prompt_tokens)

    def load_s(self, model: str) -> float:
        """Seconds to load a model, and to copy it first if it is not on disk."""
        spec = self.spec
        copy_s = 0.0 if model in self.models else spec.model_bytes / spec.lan_bytes_per_s
        return copy_s + spec.load_s

    def next_s(self) -> float:
        """Time of the node's next event; infinite if there is none."""
        return min(self._prefill_ends_s, self._row_ends_s(), self._retry_s)

    def _row_ends_s(self) -> float:
        if not self._rows:
            return math.inf
        left = max(0.0, self._rows[0][0] - self._decoded)
        return self._decoded_at_s + left / self.spec.row_tokens_per_s(len(self._rows))

    # --- changing ---

    def submit(self, job: Job, now_s: float) -> list[JobEvent]:
        job.node, job.sent_s = self.number, now_s
        self.in_flight += 1
        self._queue.append(job)
        self.version += 1
        return list(self._begin(now_s))

    def advance(self, now_s: float) -> list[JobEvent]:
        """Performs the events of the time that `next_s` returned."""
        self.version += 1
        events: list[JobEvent] = []
        if self._prefill_ends_s <= now_s:
            events += self._end_prefill(now_s)
        while self._row_ends_s() <= now_s:
            events.append(self._end_row(now_s))
        return [*events, *self._begin(now_s)]

    def _begin(self, now_s: float) -> Iterator[JobEvent]:
        self._retry_s = math.inf
        self._begin_loads(now_s)
        if self._prefilling is not None or self.rows >= self.spec.max_rows:
            return
        job = self._next(now_s)
        if job is None:
            return
        self._queue.remove(job)
        reach = self.usable(job.call)
        if math.isnan(job.began_s):
            job.began_s = now_s
        job.cached_tokens = reach.tokens
        job.prefill_s = self.service_s(job.call, reach)
        self.busy_s += job.prefill_s
        self._prefilling, self._prefill_ends_s = job, now_s + job.prefill_s
        yield JobBegan(job, reach)

    def _begin_loads(self, now_s: float) -> None:
        """Begins the loads of waiting models that have room. Loaded models go on meanwhile."""
        firsts: dict[str, Job] = {}
        for job in self._queue:
            firsts.setdefault(job.call.model, job)
        for model, job in firsts.items():
            if model in self.ready_s or not self._make_room(model, now_s):
                continue
            took_s = self.load_s(model)
            job.began_s, self.ready_s[model] = now_s, now_s + took_s
            self.busy_s += took_s
            self.loads += 1
            if model not in self.models:
                self.models.append(model)

    def _next(self, now_s: float) -> Job | None:
        """The first waiting job whose model is loaded. Once a job has waited too long for its
        model, jobs that came after it are not begun."""
        closes_s = math.inf
        for job in self._queue:
            ready_s = self.ready_s.get(job.call.model)
            if ready_s is None:
                if closes_s == math.inf:
                    closes_s = job.sent_s + self.spec.max_swap_wait_s
                    closes_s = closes_s if closes_s <= now_s else math.inf
            elif ready_s > now_s:
                self._retry_s = min(self._retry_s, ready_s)
            elif job.sent_s <= closes_s or not math.isnan(job.began_s):
                # The most recently used model comes last.
                self.ready_s[job.call.model] = self.ready_s.pop(job.call.model)
                return job
        return None

    def _make_room(self, model: str, now_s: float) -> bool:
        """Unloads a model if that is needed. Returns False if the model must wait: models in use or
        waited for stay, and those within their minimum residency."""
        if len(self.ready_s) < self.spec.resident_models:
            return True
        busy = {row[2].call.model for row in self._rows}
        if self._prefilling is not None:
            busy.add(self._prefilling.call.model)
        busy |= {job.call.model for job in self._queue if not self._is_blocked(job, now_s)}
        for each, ready_s in self.ready_s.items():
            evictable_s = ready_s + self.spec.min_residency_s
            if each in busy:
                continue
            if evictable_s <= now_s:
                del self.ready_s[each]
                self.cache(each).clear_memory()
                return True
            self._retry_s = min(self._retry_s, evictable_s)
        return False

    def _is_blocked(self, job: Job, now_s: float) -> bool:
        """True if the job came after one that has waited too long for its model. Never true for the
        job that its model was loaded for."""
        if not math.isnan(job.began_s):
            return False
        overdue_s = (
            each.sent_s + self.spec.max_swap_wait_s
            for each in self._queue
            if each.call.model not in self.ready_s
        )
        first_s = min(overdue_s, default=math.inf)
        if now_s < first_s < self._retry_s:
            self._retry_s = first_s
        return first_s <= now_s and first_s < job.sent_s

    def _end_prefill(self, now_s: float) -> Iterator[JobEvent]:
        job = self._prefilling
        assert job is not None
        self._prefilling, self._prefill_ends_s = None, math.inf
        self._decode_until(now_s)
        job.first_s = now_s
        yield FirstToken(job)
        heapq.heappush(self._rows, (self._decoded + job.call.output_tokens, job.call.number, job))

    def _decode_until(self, now_s: float) -> None:
        if self._rows:
            rate = self.spec.row_tokens_per_s(len(self._rows))
            self._decoded += (now_s - self._decoded_at_s) * rate
        self._decoded_at_s = now_s

    def _end_row(self, now_s: float) -> JobEnded:
        self._decode_until(now_s)
        end, _, job = heapq.heappop(self._rows)
        self._decoded = max(self._decoded, end)
        self.in_flight -= 1
        job.ended_s = now_s
        call = job.call
        self.cache(call.model).store(call.stored, call.stored_ends, call.marks)
        return JobEnded(job)
