"""Periodic work of a node: it loads pinned models and kills engines that hang; without a router it
unloads models that have been idle for too long."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from node.engines.residency_policy import ResidencyPolicy
from node.engines.supervisor import Supervisor
from node.errors import ModelBusy, NodeError, StartError, UnknownModel
from node.protocol.idle_rule import is_idle_too_long
from node.protocol.lifecycle import POLICIES_LAPSE_S
from node.protocol.messages import NOT_LOADED, ModelState, ModelStatus

ROUND_S = 2.0
UNWATCHED_S = 60.0
"""Seconds after the last router's disconnect until the node applies keep-alives itself."""
LOAD_STALL_S = 900.0
"""Seconds without progress after which a load counts as hung: a slow disk may need minutes for a
single tensor."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """An engine's progress, and the time since which it has been the same."""

    mark: tuple[int, int, float | None]
    """Number of the load, tokens of its work, and fraction of the load that is done."""
    since_s: float


class Watchdog:
    """Owner of the progress seen of each engine."""

    def __init__(
        self,
        supervisor: Supervisor,
        residency: ResidencyPolicy,
        is_watched: Callable[[], bool],
        stall_timeout_s: float,
    ) -> None:
        self._supervisor = supervisor
        self._residency = residency
        self._is_watched = is_watched
        self.stall_timeout_s = stall_timeout_s
        """Seconds without progress after which an engine with requests is killed."""
        self._progress: dict[str, EngineProgress] = {}
        self._watched_s = supervisor.now_s()
        """Time when a router was last connected."""
        self._loading: set[asyncio.Task[None]] = set()
        self._reasons: dict[str, str] = {}
        """For each pinned model that is not loaded, the reason as last logged."""

    async def run(self) -> None:
        """Runs rounds; never returns."""
        try:
            while True:
                await self.check()
                await asyncio.sleep(ROUND_S)
        finally:
            for task in self._loading:
                task.cancel()

    async def check(self) -> None:
        """One round."""
        now_s = self._supervisor.now_s()
        self._drop_silent_routers(now_s)
        statuses = self._supervisor.status()
        self._load_pinned(statuses)
        for name, limit_s in self._stalled(statuses, now_s):
            self._supervisor.kill(name, f"it has made no progress for {limit_s:.0f} s.")
        if self._is_watched():
            self._watched_s = now_s
        elif now_s - self._watched_s >= UNWATCHED_S:
            for status in filter(is_idle_too_long, statuses):
                await self._unload(status)

    def _drop_silent_routers(self, now_s: float) -> None:
        for router_id in self._residency.lapse(now_s):
            logger.warning(
                "Router %s has been silent for %.0f s: its pins and keep-alives no longer apply.",
                router_id,
                POLICIES_LAPSE_S,
            )
            self._supervisor.on_residency_change()

    def _load_pinned(self, statuses: tuple[ModelStatus, ...]) -> None:
        if self._residency.in_maintenance:
            for task in self._loading:
                task.cancel()
        # A router loads the models that it has pinned.
        for status in statuses:
            is_due = status.state in NOT_LOADED and not status.leases and not status.retry_after_s
            if status.name in self._residency.pins and is_due:
                task = asyncio.create_task(self._load(status.name))
                self._loading.add(task)
                task.add_done_callback(self._loading.discard)

    async def _load(self, name: str) -> None:
        try:
            with self._supervisor.serving(await self._supervisor.find(name)) as lease:
                await lease.ready(ahead=True)
            self._reasons.pop(name, None)
        except NodeError as error:
            if self._reasons.get(name) != error.message:
                logger.warning("The pinned model %s is not loaded: %s", name, error.message)
            self._reasons[name] = error.message

    def _stalled(
        self, statuses: tuple[ModelStatus, ...], now_s: float
    ) -> Iterator[tuple[str, float]]:
        """The models whose engines had a load or a request all the time, and made no progress for
        their limit in seconds."""
        before, self._progress = self._progress, {}
        for status in statuses:
            is_loading = status.state is ModelState.LOADING
            if not is_loading and not status.active_requests:
                continue
            mark = (status.generation, status.work_tokens, status.progress)
            last = before.get(status.name)
            since_s = last.since_s if last and last.mark == mark else now_s
            self._progress[status.name] = EngineProgress(mark, since_s)
            limit_s = LOAD_STALL_S if is_loading else self.stall_timeout_s
            if now_s - since_s >= limit_s:
                yield status.name, limit_s

    async def _unload(self, status: ModelStatus) -> None:
        assert status.keep_alive_s is not None
        # It has been used since, or removed; another place reports that the disk cannot be read.
        with suppress(ModelBusy, UnknownModel, StartError):
            entry = await self._supervisor.find(status.name)
            logger.info("Unloading %s, idle for %.0f s.", status.name, status.idle_s)
            await self._supervisor.unload(entry, status.generation, status.keep_alive_s)
