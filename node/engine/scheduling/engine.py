"""The engine of text models: it prefills prompts in chunks and decodes rows together."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

import mlx.core as mx

from node.engine.base import ignore_long_step
from node.engine.decoding.chunking import ChunkLimits, max_chunk_tokens
from node.engine.decoding.row import Row
from node.engine.kv.cache_layout import CacheLayout
from node.engine.kv.codec import codec_for
from node.engine.model.device import release_thread
from node.engine.model.load import LoadedModel
from node.engine.scheduling.disk_cache import ModelIdentity, begin_identity, open_disk
from node.engine.scheduling.intake import Intake
from node.engine.scheduling.memory_plan import MemoryPlan
from node.engine.scheduling.memory_upkeep import MemoryUpkeep, RowCounts
from node.engine.scheduling.prefix_reuse import PrefixReuse
from node.engine.scheduling.queue import RowQueue
from node.engine.scheduling.running import RunningRows
from node.engine.scheduling.step_costs import StepCosts
from node.engine.scheduling.step_runner import StepRunner
from node.engine.scheduling.warmup import WarmUp
from node.ipc.generate import GenerateRequest
from node.ipc.messages import (
    Accepted,
    CacheEvent,
    Delta,
    EngineSpec,
    EngineStats,
    Loaded,
    MemoryLease,
    Pressure,
    Progress,
    Refused,
)
from node.protocol.messages import FinishReason

FLUSH_S = 3.0
"""Seconds that an engine may spend on writing stored KV to disk when it closes."""

logger = logging.getLogger(__name__)


class TextEngine:
    """An `Engine` of one text model. All calls come from the thread that made it."""

    def __init__(
        self,
        model: LoadedModel,
        spec: EngineSpec,
        identity: "Future[ModelIdentity] | None" = None,
        on_long_step: Callable[[float], None] = ignore_long_step,
    ) -> None:
        """`identity` is the model's identity if `begin_identity` has been called before.
        `on_long_step` as in `EngineFactory`."""
        self._model = model
        self._layout = CacheLayout.probe(
            model.network,
            live_bits=spec.kv_live_bits,
            codec=codec_for(spec.kv_cache_bits),
        )
        self._costs = StepCosts(on_long_step)
        rates = self._costs.rates
        self._plan = MemoryPlan(spec.lease, self._layout.live_bytes, model.weight_bytes)
        tier, self._naming = open_disk(spec, identity or begin_identity(spec), logger.warning)
        self.info = Loaded(
            weight_bytes=model.weight_bytes,
            context_tokens=model.context_tokens,
            max_rows=spec.max_rows,
            vocab_size=model.vocab_size,
            snapshot_only=self._layout.needs_snapshot,
            stored_bytes_per_token=self._layout.span_bytes_per_token,
            disk_bytes=0 if tier is None or spec.disk is None else spec.disk.max_bytes,
            disk_folder="" if tier is None else str(tier.folder),
        )
        self._reuse = PrefixReuse(self._layout, spec, rates, tier)
        self._upkeep = MemoryUpkeep(self._plan, self._reuse, spec)
        self._queue = RowQueue(self._reuse, rates)
        self._intake = Intake(model, self.info, self._plan)
        self._responses: list[Accepted | Refused] = []
        self._running = RunningRows(self._layout, self._reuse)
        self._steps = StepRunner(
            model=model,
            layout=self._layout,
            info=self.info,
            limits=ChunkLimits.of(spec),
            plan=self._plan,
            reuse=self._reuse,
            queue=self._queue,
            running=self._running,
            costs=self._costs,
            device=self._upkeep.device,
        )
        self._warm_up = WarmUp(model, self._layout, rates, 0)

    def warm_up(self) -> None:
        """Plans a warm-up: the next idle steps do the one-time work that the first request would
        otherwise wait for. A request ends it."""
        # The warm-up decodes two rows of this length, each with one more token.
        longest = self._plan.longest_tokens(self.info.context_tokens) // 2 - 1
        most = min(max_chunk_tokens(self._steps.limits, 0, 1), longest)
        self._warm_up = WarmUp(self._model, self._layout, self._costs.rates, most)

    # --- requests ----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest) -> Accepted | Refused | None:
        self._warm_up.drop()
        taken = self._intake.accept(request, is_running=self._is_running(request.uid))
        return self._queued(taken) if isinstance(taken, Row) else taken

    def _queued(self, row: Row) -> Accepted:
        return Accepted(row.uid, len(row.prompt), self._queue.add(row))

    def take_responses(self) -> list[Accepted | Refused]:
        responses, self._responses = self._responses, []
        return responses

    def _is_running(self, uid: str) -> bool:
        return any(row.uid == uid for row in self._rows())

    def _rows(self) -> list[Row]:
        return [*self._queue.rows(), *self._running.rows()]

    def cancel(self, uid: str) -> list[Delta]:
        row = self._intake.drop(uid)
        rows = [row] if row is not None else [each for each in self._rows() if each.uid == uid]
        for row in rows:
            self._queue.remove(row)
            self._steps.remove(row)
        choices = [each for row in rows for each in row.choices]
        return [each.final_delta(FinishReason.CANCELLED) for each in choices]

    # --- steps -------------------------------------------------------------------------------

    def wait_s(self) -> float | None:
        if self._running.groups or self._running.batches or self._warm_up.is_pending:
            return 0.0
        waits = [self._upkeep.wait_s(), self._intake.wait_s()]
        rows = self._queue.ready()
        if rows:
            rest = sum(row.rest_estimate for row in rows)
            due_s = self._costs.batching_delay.due_s(rows[0].accepted_s, rows[-1].accepted_s, rest)
            waits.append(max(0.0, due_s - time.monotonic()))
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def step(self) -> list[Delta]:
        for taken in self._intake.finished():
            self._responses.append(self._queued(taken) if isinstance(taken, Row) else taken)
        self._reuse.poll()
        if not self._steps.run():
            with self._upkeep.device.measuring():
                self._warm_up.step()
        self._steps.make_room()
        self._upkeep.after_step(self._running.live_bytes(), busy=bool(self._running.places()))
        return self._steps.take_deltas()

    # --- memory ------------------------------------------------------------------------------

    def set_lease(self, lease: MemoryLease) -> None:
        self._upkeep.set_lease(lease, self._running.live_bytes())

    def set_pressure(self, level: Pressure) -> None:
        self._upkeep.set_pressure(level)

    def clear_cache(self) -> None:
        self._reuse.clear()
        self._upkeep.device.release_free_buffers(keep_bytes=0)

    # --- statistics --------------------------------------------------------------------------

    def take_progress(self) -> tuple[Progress, ...]:
        return self._costs.take_progress()

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        return self._reuse.events()

    def stats(self) -> EngineStats:
        counts = RowCounts(
            waiting=sum(len(row.choices) for row in self._queue.rows()),
            prefilling=len(self._running.coming()),
            decoding=sum(len(batch.rows) for batch in self._running.batches),
            prefilled_tokens=self._costs.prefilled_tokens,
            live_kv_bytes=self._running.nbytes,
        )
        return self._upkeep.stats(self._costs.rates, counts)

    # --- ends --------------------------------------------------------------------------------

    def reset(self, reason: str) -> list[Delta]:
        deltas = self._steps.reset(reason)
        self._upkeep.release_soon()
        return deltas

    def close(self) -> tuple[CacheEvent, ...]:
        self._intake.close()
        self._running.clear()
        mx.synchronize()
        if self._naming is not None:
            self._naming.close()
        self._reuse.close(FLUSH_S)
        if self._naming is not None:
            self._naming.sweep()
        events = self._reuse.events()
        del self._model, self._layout, self._reuse, self._queue, self._plan, self._upkeep
        del self._intake, self._steps
        release_thread()
        return events
