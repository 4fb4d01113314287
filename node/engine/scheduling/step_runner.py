"""Runs an engine's steps: moves rows from the queue through prefill into decode batches."""

import time
from dataclasses import dataclass, field
from typing import Any

from node.engine.decoding.batches import DecodeBatch, PrefillGroup
from node.engine.decoding.chunking import ChunkLimits, chunk_tokens
from node.engine.decoding.row import Row, output_limit
from node.engine.kv.cache_layout import CacheLayout
from node.engine.model.device import Device
from node.engine.model.load import LoadedModel
from node.engine.sampling.logprobs import TopLogprobs
from node.engine.scheduling.memory_plan import MemoryPlan
from node.engine.scheduling.prefix_reuse import PrefixReuse
from node.engine.scheduling.queue import RowQueue, group_size
from node.engine.scheduling.refusals import too_large
from node.engine.scheduling.running import RunningRows, expected_lengths
from node.engine.scheduling.step_costs import StepCosts
from node.ipc.messages import Delta, Loaded
from node.protocol.messages import FinishReason

NOT_STORED = (
    "The prompt was prefilled, but there is no room to keep it: raise --kv-cache-size or "
    "--memory-limit."
)


@dataclass(eq=False)
class StepRunner:
    """Runs the steps of one engine. Only it moves rows between the queue and the running ones."""

    model: LoadedModel
    layout: CacheLayout
    info: Loaded
    limits: ChunkLimits
    plan: MemoryPlan
    reuse: PrefixReuse
    queue: RowQueue
    running: RunningRows
    costs: StepCosts
    device: Device
    _moving: list[Row] = field(default_factory=list)
    """Rows being moved from one group or batch to the next, so that `reset` finds them if the
    step fails."""
    _deltas: list[Delta] = field(default_factory=list)
    """Deltas of the current step, which `reset` returns if the step fails."""
    _prefill_next: bool = False

    def run(self) -> bool:
        """Admits waiting rows, then prefills one chunk or decodes one token of each row. Returns
        False if there is no row to run."""
        if len(self.queue):
            self._admit()
        running = self.running
        if running.groups and (self._prefill_next or not running.batches):
            self._prefill_next = False
            self._prefill()
        elif running.batches:
            # While prompts wait, each token is sent before the next chunk, without a pass ahead.
            self._prefill_next = bool(running.groups)
            self._decode(ahead=not running.groups)
        else:
            return False
        return True

    def take_deltas(self) -> list[Delta]:
        """Returns the deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def remove(self, row: Row) -> Row:
        """Removes a row from its group or batch; its KV is stored."""
        self._moving.append(row)
        self.running.remove(row)
        self._moving.remove(row)
        return row

    def make_room(self) -> None:
        """Preempts the youngest rows until live KV fits into memory. A single row ends when it
        fills a lease that shrank while it ran."""
        running, plan = self.running, self.plan
        while running.live_bytes() > max(plan.max_live_bytes, plan.tolerated_bytes):
            if not self.preempt():
                rows = [self.remove(row) for row in running.rows()]
                self._deltas += [each.cut_short() for row in rows for each in row.choices]

    def preempt(self) -> bool:
        """Sends the row that was accepted last back to the queue, to be prefilled again when there
        is room. Returns False if fewer than two rows run."""
        rows = self.running.rows()
        if len(rows) < 2:
            return False
        row = self.remove(max(rows, key=lambda row: (row.accepted_s, row.choice)))
        row.restart()
        self.queue.add(row)
        return True

    def reset(self, reason: str) -> list[Delta]:
        """Drops all rows of a step that failed. Returns the deltas of that step and the last ones
        of the dropped rows."""
        # Waiting rows survive, unless no row was running or moving: then the failure is theirs.
        deltas = self.take_deltas()
        inside = [*self.running.rows(), *self._moving]
        uids = {row.uid for row in inside}
        waiting = [row for row in self.queue.rows() if row.uid in uids or not inside]
        for row in waiting:
            self.queue.remove(row)
        rows = dict.fromkeys(each for row in (*inside, *waiting) for each in row.choices)
        lost = [row for row in rows if not row.ended]
        self.running.clear()
        self._prefill_next = False
        self._moving.clear()
        return deltas + [row.final_delta(FinishReason.ERROR, error=reason) for row in lost]

    def _admit(self) -> None:
        """Moves waiting rows into prefill while there is room."""
        fresh: list[tuple[Row, list[Any]]] = []
        places = self.info.max_rows - sum(len(row.choices) for row in self.running.rows())
        while places > 0:
            row = self.queue.next(self.running.groups, [row for row, _ in fresh])
            if row is None or not self._has_room(row, [row for row, _ in fresh], places):
                break
            self._moving.append(row)
            longest = self.plan.longest_tokens(self.info.context_tokens)
            if len(row.tokens) >= longest:
                self.queue.remove(row)
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
            caches = self.reuse.restore(row)
            self.queue.remove(row)
            if row.tally.prefill_began_s is None:
                row.tally.prefill_began_s = time.monotonic()
            places -= len(row.choices)
            fresh.append((row, caches))
        while fresh:
            count = group_size([row for row, _ in fresh])
            rows, caches = zip(*fresh[:count], strict=True)
            self.running.groups.append(PrefillGroup(self.model, self.layout, [*rows], [*caches]))
            fresh = fresh[count:]
        self._moving.clear()

    def _has_room(self, row: Row, fresh: list[Row], places: int) -> bool:
        """True if the row and its choices fit beside the running and the `fresh` rows."""
        lengths = expected_lengths([row])
        coming = self.running.coming() + expected_lengths(fresh)
        return len(lengths) <= places and self.plan.admits(
            self.running.batch_shapes(), coming, lengths
        )

    def _prefill(self) -> None:
        """Runs one chunk of the most urgent group."""
        now_s = time.monotonic()
        group = min(
            self.running.groups,
            key=lambda group: min(self.queue.urgency_s(row, now_s) for row in group.rows),
        )
        chunk = chunk_tokens(
            self.limits,
            self.costs.rates,
            group.depth_tokens,
            len(group.rows),
            decoding=bool(self.running.batches),
        )
        with self.device.measuring():
            self.costs.prefill(group, chunk)
        for row in group.rows:
            if row.rest_tokens == 0 or row.done_tokens in row.checkpoints:
                self.reuse.store_prompt(row, group.view(row))
        self._moving += group.rows
        finished = group.take_finished()
        self.running.drop_empty()
        if finished is not None:
            self._begin_decode(finished)
        self._moving.clear()

    def _begin_decode(self, group: PrefillGroup) -> None:
        """Adds prefilled rows to a batch; rows that only warm the cache end here."""
        for row in [row for row in group.rows if row.request.warm]:
            group.remove(row)
            if self.reuse.pin(row):
                self._deltas.append(row.final_delta(FinishReason.STOP))
            else:
                self._deltas.append(row.final_delta(FinishReason.ERROR, error=NOT_STORED))
        if group.rows:
            if any(row.waiting_choices for row in group.rows):
                self._spread(group)
            longest = max(row.expected_tokens for row in group.rows)
            index = self.plan.place(self.running.batch_shapes(), longest)
            if index is None:
                self.running.batches.append(DecodeBatch(self.model, self.layout))
                index = -1
            self.running.batches[index].join(group)

    def _spread(self, group: PrefillGroup) -> None:
        """Makes rows of the waiting choices. Choices without room go back to the queue."""
        lengths = expected_lengths(group.rows)
        running = self.running
        most = self.plan.fitting(running.batch_shapes(), running.coming(), lengths)
        for row in group.take_surplus(most):
            self.queue.add(row)
        group.spread()
        self._moving += group.rows

    def _decode(self, *, ahead: bool) -> None:
        """Decodes the next token of every row."""
        self.costs.expect_decode()
        began_s = time.monotonic()
        for batch in self.running.batches:
            batch.launch()
        for batch in self.running.batches:
            tokens, logprobs = batch.step(ahead=ahead)
            now_s = time.monotonic()
            self.costs.note_decode(len(tokens), batch.depth_tokens, now_s - began_s)
            began_s = now_s
            self._add_tokens(batch, tokens, logprobs, now_s)
            if batch.is_ahead:
                batch.launch()
        self.running.drop_empty()

    def _add_tokens(
        self, batch: DecodeBatch, tokens: list[int], logprobs: dict[int, TopLogprobs], now_s: float
    ) -> None:
        """Gives the rows their tokens, collects the deltas and removes the rows that end."""
        ended = []
        for place, (row, token) in enumerate(zip(batch.rows, tokens, strict=True)):
            delta = row.add_token(token, self.model.end_tokens, now_s, logprobs.get(place))
            if delta is not None:
                self._deltas.append(delta)
                if delta.finish is not None:
                    ended.append(row)
        for row in ended:
            self.reuse.store_output(row, batch.view(row))
        if ended:
            batch.remove(ended)
