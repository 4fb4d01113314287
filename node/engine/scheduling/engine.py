"""The engine of text models: it prefills prompts in chunks and decodes rows together."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import mlx.core as mx

from node.engine.decoding.batches import DecodeBatch, PrefillGroup
from node.engine.decoding.chunking import ChunkLimits, chunk_tokens, most_tokens
from node.engine.decoding.row import Row, output_limit
from node.engine.kv.cache_layout import CacheLayout
from node.engine.kv.codec import codec_for
from node.engine.model.device import leave_thread
from node.engine.model.load import LoadedModel
from node.engine.sampling.logprobs import TopLogprobs
from node.engine.scheduling.disk_cache import ModelIdentity, begin_identity, open_disk
from node.engine.scheduling.intake import Intake
from node.engine.scheduling.memory_plan import MemoryPlan
from node.engine.scheduling.memory_upkeep import MemoryUpkeep, RowCounts
from node.engine.scheduling.prefix_reuse import PrefixReuse
from node.engine.scheduling.queue import RowQueue, group_size
from node.engine.scheduling.refusals import too_large
from node.engine.scheduling.running import RunningRows, expected_lengths
from node.engine.scheduling.step_costs import StepCosts
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

NOT_STORED = (
    "The prompt was prefilled, but there is no room to keep it: raise --kv-cache-size or "
    "--memory-limit."
)
FLUSH_S = 3.0
"""Seconds that an engine may spend on writing stored KV to disk when it closes."""

logger = logging.getLogger(__name__)


class TextEngine:
    """An `Engine` of one text model. All calls come from the thread that made it."""

    def __init__(
        self, model: LoadedModel, spec: EngineSpec, identity: "Future[ModelIdentity] | None" = None
    ) -> None:
        """`identity` is the model's identity if `begin_identity` has been called before."""
        self._model = model
        self._layout = CacheLayout.probe(
            model.network,
            live_bits=spec.kv_live_bits,
            codec=codec_for(spec.kv_cache_bits),
        )
        self._limits = ChunkLimits.of(spec)
        self._costs = StepCosts()
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
        self._answers: list[Accepted | Refused] = []
        self._running = RunningRows(self._layout, self._reuse)
        self._moving: list[Row] = []
        """Rows being moved from one group or batch to the next, so that `reset` finds them if the
        step fails."""
        self._deltas: list[Delta] = []
        """Deltas of the current step, which `reset` returns if the step fails."""
        self._prefill_next = False
        self._warm_up = WarmUp(model, self._layout, rates, 0)

    def warm_up(self) -> None:
        """Plans a warm-up: the next idle steps do the one-time work that the first request would
        otherwise wait for. A request ends it."""
        # The warm-up decodes two rows of this length, each with one more token.
        longest = self._plan.longest_tokens(self.info.context_tokens) // 2 - 1
        most = min(most_tokens(self._limits, 0, 1), longest)
        self._warm_up = WarmUp(self._model, self._layout, self._costs.rates, most)

    def set_on_long_step(self, on_long_step: Callable[[float], None]) -> None:
        self._costs.on_long_step = on_long_step

    # --- requests ----------------------------------------------------------------------------

    def submit(self, request: GenerateRequest) -> Accepted | Refused | None:
        self._warm_up.drop()
        taken = self._intake.take(request, is_running=self._is_running(request.uid))
        return self._queued(taken) if isinstance(taken, Row) else taken

    def _queued(self, row: Row) -> Accepted:
        return Accepted(row.uid, len(row.prompt), self._queue.add(row))

    def take_answers(self) -> list[Accepted | Refused]:
        answers, self._answers = self._answers, []
        return answers

    def _is_running(self, uid: str) -> bool:
        return any(row.uid == uid for row in self._rows())

    def _rows(self) -> list[Row]:
        return [*self._queue.rows(), *self._running.rows()]

    def cancel(self, uid: str) -> list[Delta]:
        row = self._intake.drop(uid)
        rows = [row] if row is not None else [each for each in self._rows() if each.uid == uid]
        for row in rows:
            self._queue.remove(row)
            self._remove(row)
        choices = [each for row in rows for each in row.choices]
        return [each.final_delta(FinishReason.CANCELLED) for each in choices]

    def _remove(self, row: Row) -> Row:
        """Removes a row from its group or batch; its KV is stored."""
        self._moving.append(row)
        self._running.remove(row)
        self._moving.remove(row)
        return row

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
            self._answers.append(self._queued(taken) if isinstance(taken, Row) else taken)
        self._reuse.poll()
        self._admit()
        if self._running.groups and (self._prefill_next or not self._running.batches):
            self._prefill_next = False
            self._prefill()
        elif self._running.batches:
            # While prompts wait, each token is sent before the next chunk, without a pass ahead.
            self._prefill_next = bool(self._running.groups)
            self._decode(ahead=not self._running.groups)
        else:
            with self._upkeep.device.measuring():
                self._warm_up.step()
        self._after_step()
        return self._take_deltas()

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _admit(self) -> None:
        """Moves waiting rows into prefill while there is room."""
        fresh: list[tuple[Row, list[Any]]] = []
        places = self.info.max_rows - sum(len(row.choices) for row in self._running.rows())
        while places > 0:
            row = self._queue.next(self._running.groups, [row for row, _ in fresh])
            if row is None or not self._has_room(row, [row for row, _ in fresh], places):
                break
            self._moving.append(row)
            longest = self._plan.longest_tokens(self.info.context_tokens)
            if len(row.tokens) >= longest:
                self._queue.remove(row)
                error = too_large(len(row.tokens), longest)
                for each in row.choices:
                    lost = not each.output
                    self._deltas.append(
                        each.final_delta(FinishReason.ERROR, error=error)
                        if lost
                        else each.cut_short()
                    )
                continue
            for each in row.choices:
                each.limit = output_limit(row.request, longest)
            caches = self._reuse.restore(row)
            self._queue.remove(row)
            if row.tally.prefill_began_s is None:
                row.tally.prefill_began_s = time.monotonic()
            places -= len(row.choices)
            fresh.append((row, caches))
        while fresh:
            count = group_size([row for row, _ in fresh])
            rows, caches = zip(*fresh[:count], strict=True)
            self._running.groups.append(PrefillGroup(self._model, self._layout, [*rows], [*caches]))
            fresh = fresh[count:]
        self._moving.clear()

    def _has_room(self, row: Row, fresh: list[Row], places: int) -> bool:
        """True if the row and its choices fit beside the running and the `fresh` rows."""
        lengths = expected_lengths([row])
        coming = self._running.coming() + expected_lengths(fresh)
        return len(lengths) <= places and self._plan.admits(
            self._running.batch_shapes(), coming, lengths
        )

    def _prefill(self) -> None:
        """Runs one chunk of the most urgent group."""
        now_s = time.monotonic()
        group = min(
            self._running.groups,
            key=lambda group: min(self._queue.urgency_s(row, now_s) for row in group.rows),
        )
        chunk = chunk_tokens(
            self._limits,
            self._costs.rates,
            group.depth_tokens,
            len(group.rows),
            decoding=bool(self._running.batches),
        )
        with self._upkeep.device.measuring():
            self._costs.prefill(group, chunk)
        for row in group.rows:
            if row.rest_tokens == 0 or row.done_tokens in row.checkpoints:
                self._reuse.store_prompt(row, group.view(row))
        self._moving += group.rows
        finished = group.take_finished()
        self._running.drop_empty()
        if finished is not None:
            self._begin_decode(finished)
        self._moving.clear()

    def _begin_decode(self, group: PrefillGroup) -> None:
        """Adds prefilled rows to a batch; rows that only warm the cache end here."""
        for row in [row for row in group.rows if row.request.warm]:
            group.remove(row)
            if self._reuse.pin(row):
                self._deltas.append(row.final_delta(FinishReason.STOP))
            else:
                self._deltas.append(row.final_delta(FinishReason.ERROR, error=NOT_STORED))
        if group.rows:
            if any(row.others for row in group.rows):
                self._spread(group)
            longest = max(row.expected_tokens for row in group.rows)
            index = self._plan.place(self._running.batch_shapes(), longest)
            if index is None:
                self._running.batches.append(DecodeBatch(self._model, self._layout))
                index = -1
            self._running.batches[index].join(group)

    def _spread(self, group: PrefillGroup) -> None:
        """Makes rows of the waiting choices. Choices without room go back to the queue."""
        lengths = expected_lengths(group.rows)
        running = self._running
        most = self._plan.fitting(running.batch_shapes(), running.coming(), lengths)
        for row in group.take_surplus(most):
            self._queue.add(row)
        group.spread()
        self._moving += group.rows

    def _decode(self, *, ahead: bool) -> None:
        """Decodes the next token of every row."""
        self._costs.expect_decode()
        began_s = time.monotonic()
        for batch in self._running.batches:
            batch.launch()
        for batch in self._running.batches:
            tokens, logprobs = batch.step(ahead=ahead)
            now_s = time.monotonic()
            self._costs.note_decode(len(tokens), batch.depth_tokens, now_s - began_s)
            began_s = now_s
            self._take(batch, tokens, logprobs, now_s)
            if batch.is_ahead:
                batch.launch()
        self._running.drop_empty()

    def _take(
        self, batch: DecodeBatch, tokens: list[int], logprobs: dict[int, TopLogprobs], now_s: float
    ) -> None:
        """Gives the rows their tokens, collects the deltas and removes the rows that end."""
        ended = []
        for place, (row, token) in enumerate(zip(batch.rows, tokens, strict=True)):
            delta = row.take(token, self._model.end_tokens, now_s, logprobs.get(place))
            if delta is not None:
                self._deltas.append(delta)
                if delta.finish is not None:
                    ended.append(row)
        for row in ended:
            self._reuse.store_answer(row, batch.view(row))
        if ended:
            batch.remove(ended)

    # --- memory ------------------------------------------------------------------------------

    def _after_step(self) -> None:
        """Preempts the youngest rows until live KV fits into memory, then evicts stored KV that
        live KV displaces. A single row ends when it fills a lease that shrank while it ran."""
        while self._running.live_bytes() > max(
            self._plan.max_live_bytes, self._plan.tolerated_bytes
        ):
            if not self._preempt():
                rows = [self._remove(row) for row in self._running.rows()]
                self._deltas += [each.cut_short() for row in rows for each in row.choices]
        self._upkeep.after_step(self._running.live_bytes(), busy=bool(self._running.places()))

    def _preempt(self) -> bool:
        """Sends the row that was accepted last back to the queue, to be prefilled again when there
        is room. Returns False if fewer than two rows run."""
        rows = self._running.rows()
        if len(rows) < 2:
            return False
        row = self._remove(max(rows, key=lambda row: (row.accepted_s, row.choice)))
        row.restart()
        self._queue.add(row)
        return True

    def set_lease(self, lease: MemoryLease) -> None:
        self._upkeep.set_lease(lease, self._running.live_bytes())

    def set_pressure(self, level: Pressure) -> None:
        self._upkeep.set_pressure(level)

    def clear_cache(self) -> None:
        self._reuse.clear()
        self._upkeep.device.tidy(keep_bytes=0)

    # --- accounts ----------------------------------------------------------------------------

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
        # Waiting rows survive, unless no row was running or moving: then the failure is theirs.
        deltas = self._take_deltas()
        inside = [*self._running.rows(), *self._moving]
        uids = {row.uid for row in inside}
        waiting = [row for row in self._queue.rows() if row.uid in uids or not inside]
        for row in waiting:
            self._queue.remove(row)
        rows = dict.fromkeys(each for row in (*inside, *waiting) for each in row.choices)
        lost = [row for row in rows if not row.ended]
        self._running.clear()
        self._prefill_next = False
        self._moving.clear()
        self._upkeep.tidy_soon()
        return deltas + [row.final_delta(FinishReason.ERROR, error=reason) for row in lost]

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
        del self._intake
        leave_thread()
        return events
