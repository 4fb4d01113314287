"""Rows that go through the model together: prompts that are prefilled, and rows that decode.

Both hold mlx-lm's caches: those of a single row as the model makes them, which need no mask, and
mlx-lm's batch caches for several. All calls come from the engine's thread.
"""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import BatchKVCache, KVCache, QuantizedKVCache

from node.engine.decoding.picker import Picked, Picker
from node.engine.decoding.row import Row
from node.engine.kv.cache_layout import CacheLayout
from node.engine.kv.cache_tree import flatten
from node.engine.kv.codec import detached
from node.engine.kv.spans import KvSpan, LayerSnapshot
from node.engine.model.load import LoadedModel
from node.engine.sampling.logprobs import Likely
from node.engine.sampling.penalties import Penalties, needs_penalties

SETTLE_PASSES = 64
"""After so many passes, what the caches know of their rows is evaluated."""


class RowView:
    """The cache of one row, for keeping parts of it."""

    def __init__(self, layout: CacheLayout, caches: list[Any], place: int | None, length: int):
        """`place` is the row's place in batch caches, None where the caches are its own. The row
        has `length` tokens in them."""
        self.length = length
        self._layout = layout
        self._caches = caches
        self._place = place

    def capture(self, begin: int, end: int) -> KvSpan:
        """A copy of the KV of these tokens, evaluated."""
        if self._place is None:
            return self._layout.capture(self._caches, begin, end)
        return self._layout.capture_row(self._caches, self._place, self.length, begin, end)

    def snapshot(self) -> LayerSnapshot:
        """A copy of the state after all of the row's tokens, evaluated."""
        if self._place is None:
            return self._layout.snapshot(self._caches)
        return self._layout.snapshot_row(self._caches, self._place)


class PrefillGroup:
    """Prompts that are prefilled together, each from where its cache ends."""

    def __init__(self, model: LoadedModel, layout: CacheLayout, rows: list[Row], caches: list[Any]):
        """`caches` holds the caches of each row, `done_tokens` long."""
        self.rows = rows
        self._model = model
        self._layout = layout
        self._merged = len(rows) > 1
        self._caches: list[Any] = layout.merge(caches) if self._merged else caches[0]
        if not self._merged:
            _grow_by(self._caches, rows[0].rest_tokens + 1)

    @property
    def reserved_tokens(self) -> int:
        """Tokens of each row that there is room for in its cache."""
        return max(row.prefill_tokens for row in self.rows)

    @property
    def rest_tokens(self) -> int:
        """Of the row with most to do."""
        return max(row.rest_tokens for row in self.rows)

    @property
    def depth_tokens(self) -> int:
        return max(row.done_tokens for row in self.rows)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def run(self, chunk_tokens: int) -> int:
        """Prefills up to `chunk_tokens` of each prompt, no further than its next cut; how many
        tokens of all prompts went through the model. Waits until it is done."""
        counts = self._counts(chunk_tokens)
        longest = max(counts)
        if longest == 0:
            return 0
        padding = [longest - count for count in counts]
        chunks = [
            [*row.tokens[row.done_tokens : row.done_tokens + count].tolist(), *([0] * pad)]
            for row, count, pad in zip(self.rows, counts, padding, strict=True)
        ]
        if any(padding):
            for cache in self._caches:
                cache.prepare(lengths=counts, right_padding=padding)
        self._model.network(mx.array(chunks), cache=self._caches)
        if self._merged:
            _finish_padding(self._caches)
        mx.eval([cache.state for cache in self._caches])
        for row, count in zip(self.rows, counts, strict=True):
            row.done_tokens += count
        return sum(counts)

    def _counts(self, chunk_tokens: int) -> list[int]:
        """How many tokens of each prompt go into the next step."""
        counts = [min(chunk_tokens, row.next_stop() - row.done_tokens) for row in self.rows]
        if min(counts) < max(counts) and not self._layout.tells_padding:
            return [min(counts)] * len(counts)
        return counts

    def view(self, row: Row) -> RowView:
        place = self.rows.index(row) if self._merged else None
        return RowView(self._layout, self._caches, place, row.done_tokens)

    def remove(self, row: Row) -> None:
        place = self.rows.index(row)
        self._keep([i for i in range(len(self.rows)) if i != place])

    def take_finished(self) -> "PrefillGroup | None":
        """The rows of which only the last token is left, with their caches."""
        ready = [i for i, row in enumerate(self.rows) if row.rest_tokens == 0]
        if not ready:
            return None
        finished = copy.copy(self)
        if len(ready) == len(self.rows):
            self.rows, self._caches = [], []
            return finished
        # Copied on write only.
        finished._caches = copy.deepcopy(self._caches)
        finished._keep(ready)
        self._keep([i for i in range(len(self.rows)) if i not in ready])
        return finished

    def take_surplus(self, most: int) -> list[Row]:
        """The last choices beyond `most` rows in all, which then wait for this prefill no more."""
        surplus = sum(len(row.choices) for row in self.rows) - most
        taken: list[Row] = []
        for row in reversed(self.rows):
            while row.others and len(taken) < surplus:
                taken.append(row.others.pop())
        return taken

    def spread(self) -> None:
        """Lets choices that waited for a row's prefill go on beside it, each with a copy of its
        caches."""
        counts = [len(row.choices) for row in self.rows]
        if max(counts) == 1:
            return
        if not self._merged:
            self._caches, self._merged = self._layout.merge([self._caches]), True
        _filter(self._caches, [at for at, count in enumerate(counts) for _ in range(count)])
        self.rows = [each for row in self.rows for each in (row, *row.release_others())]

    def release(self) -> tuple[list[Any], bool]:
        """The caches, and whether they are batch caches."""
        if not self._merged:
            _grow_by(self._caches, KVCache.step)
        return self._caches, self._merged

    def _keep(self, places: list[int]) -> None:
        if places:
            _filter(self._caches, places)
        else:
            self._caches = []
        self.rows = [self.rows[i] for i in places]


class DecodeBatch:
    """Rows that get their next token in one pass.

    A pass needs the last tokens on the device only, and is launched before they are asked for, so
    that the model works while their text is made. Where a row is steered the pass has two halves:
    the picking of the next tokens waits for that text, since it tells what the row is held to; it
    is quick, and the model still works. A row that ends has then been fed its last token, too.
    """

    def __init__(self, model: LoadedModel, layout: CacheLayout) -> None:
        self.rows: list[Row] = []
        self._model = model
        self._layout = layout
        self._caches: list[Any] = []
        self._merged = False
        self._lengths: list[int] = []
        """Tokens in the cache of each row."""
        self._next: mx.array | None = None
        """[rows]: what the next pass feeds."""
        self._logits: mx.array | None = None
        """[rows, V]: of the last pass, and nothing picked of them."""
        self._ready: Picked | None = None
        """Picked, and not handed out."""
        self._picker: Picker | None = None
        self._fresh = 0
        """How many of the last rows have not been fed since they joined."""
        self._passes = 0

    @property
    def depth_tokens(self) -> int:
        return max(self._lengths)

    @property
    def reserved_tokens(self) -> int:
        """With the token that the next pass feeds."""
        return self.depth_tokens + 1

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def join(self, group: PrefillGroup) -> None:
        """Takes in rows that are prefilled but for their last token."""
        assert self._ready is None and self._logits is None, "rows join between two passes"
        caches, merged = group.release()
        fed = mx.array([int(row.tokens[-1]) for row in group.rows])
        if not self.rows:
            self._caches, self._merged, self._next = caches, merged, fed
        else:
            assert self._next is not None
            if not self._merged:
                self._caches, self._merged = self._layout.merge([self._caches]), True
            for own, other in zip(
                self._caches, caches if merged else self._layout.merge([caches]), strict=True
            ):
                own.extend(other)
            self._next = mx.concatenate([self._next, fed])
        for row in group.rows:
            params = row.request.sampling
            if needs_penalties(params):
                row.penalties = Penalties(
                    params, row.request.tokens, row.output, self._model.vocab_size
                )
            self.rows.append(row)
            self._lengths.append(row.done_tokens)
        self._fresh += len(group.rows)
        self._picker = None

    def launch(self) -> None:
        """Starts what is missing of a pass, unless there are tokens that have not been handed
        out. All rows have taken the tokens that were."""
        if self._ready is None:
            if self._logits is None:
                self._feed()
            self._pick()

    def step(self, *, ahead: bool) -> tuple[list[int], dict[int, Likely]]:
        """The next token of each row, and what rows could have drawn that tell it, by their
        places. With `ahead`, the pass after it is started first, as far as it does not wait for
        their text; `launch` then starts the rest."""
        self.launch()
        ready = self._ready
        assert ready is not None
        self._ready = None
        if ahead and not self._feed().steers:
            self._pick()
        return ready.read()

    @property
    def is_ahead(self) -> bool:
        """Whether only the picking is missing of a pass."""
        return self._logits is not None

    def _feed(self) -> Picker:
        """The model's half of a pass; what picks the other."""
        inputs = self._next
        assert inputs is not None
        for place, row in enumerate(self.rows[: len(self.rows) - self._fresh]):
            if row.penalties is not None:
                row.penalties.count(inputs[place])
        logits = self._model.network(inputs[:, None], cache=self._caches)[:, -1, :]
        self._logits = logits
        self._lengths = [length + 1 for length in self._lengths]
        self._settle()
        self._fresh = 0
        if self._picker is None:
            self._picker = Picker(self.rows, logits.shape[1])
        if self._picker.steers:
            mx.async_eval(logits)
        return self._picker

    def _settle(self) -> None:
        """Keeps the graph behind the caches short: each pass counts on what they know of their
        rows' padding and offsets, and no layer may ever read it."""
        if not self._merged:
            return
        if self._fresh:
            _finish_padding(self._caches)
        self._passes += 1
        if self._passes % SETTLE_PASSES == 0:
            mx.async_eval([cache.state for cache in self._caches])

    def _pick(self) -> None:
        assert self._logits is not None
        # Rows may have left since the other half.
        picker = self._picker or Picker(self.rows, self._logits.shape[1])
        self._picker = picker
        self._ready, self._logits = picker.pick(self._logits), None
        self._next = self._ready.tokens

    def view(self, row: Row) -> RowView:
        place = self.rows.index(row)
        return RowView(
            self._layout, self._caches, place if self._merged else None, self._lengths[place]
        )

    def remove(self, rows: Sequence[Row]) -> None:
        keep = [i for i, row in enumerate(self.rows) if row not in rows]
        if keep:
            _filter(self._caches, keep)
            places = mx.array(keep)
            if self._next is not None:
                self._next = self._next[places]
            if self._logits is not None:
                self._logits = self._logits[places]
            if self._ready is not None:
                self._ready.keep(keep)
        else:
            self._caches, self._next, self._logits, self._ready = [], None, None, None
        self._fresh = sum(i >= len(self.rows) - self._fresh for i in keep)
        self.rows = [self.rows[i] for i in keep]
        self._lengths = [self._lengths[i] for i in keep]
        self._picker = None


def _grow_by(caches: list[Any], tokens: int) -> None:
    """Lets the KV of a single row grow by so many tokens at a time. A long prompt gets its room at
    once: growing by each chunk would copy all that is there, each time."""
    steps = -(-tokens // KVCache.step)
    for leaf in flatten(caches):
        if isinstance(leaf, KVCache | QuantizedKVCache):
            leaf.step = max(1, steps) * KVCache.step


def _finish_padding(caches: list[Any]) -> None:
    """After the first tokens of batch caches have gone through the model: KV that is padded on the
    right is moved, and states have no padding any more, not even one of no tokens, which mlx-lm
    would count on with each pass."""
    for cache in caches:
        cache.finalize()


def _filter(caches: list[Any], places: list[int]) -> None:
    """Keeps these rows of batch caches. What a shorter batch no longer needs is freed: mlx-lm
    leaves a view of the whole."""
    for leaf in flatten(caches):
        end = leaf._idx if isinstance(leaf, BatchKVCache) else 0
        leaf.filter(places)
        if isinstance(leaf, BatchKVCache) and leaf._idx < end and leaf.keys is not None:
            leaf.keys, leaf.values = tree_map(detached, (leaf.keys, leaf.values))
    mx.async_eval([leaf.state for leaf in flatten(caches)])
