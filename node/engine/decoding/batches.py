"""Groups of rows that go through the model together: prefill groups and decode batches.

Both own mlx-lm's caches: for a single row those that the model makes, which need no mask, and for
several rows mlx-lm's batch caches. All calls come from the engine's thread.
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
from node.engine.sampling.logprobs import TopLogprobs
from node.engine.sampling.penalties import Penalties, needs_penalties

SETTLE_PASSES = 64
"""Number of passes after which the lazy state of the caches is evaluated."""


class RowView:
    """The caches of one row, from which parts are copied for the prefix cache."""

    def __init__(self, layout: CacheLayout, caches: list[Any], place: int | None, length: int):
        """`place` is the row's index in batch caches; None if the caches are its own. The row
        has `length` tokens in them."""
        self.length = length
        self._layout = layout
        self._caches = caches
        self._place = place

    def capture(self, begin: int, end: int) -> KvSpan:
        """Returns an evaluated copy of the KV of the tokens from `begin` to `end`."""
        if self._place is None:
            return self._layout.capture(self._caches, begin, end)
        return self._layout.capture_row(self._caches, self._place, self.length, begin, end)

    def snapshot(self) -> LayerSnapshot:
        """Returns an evaluated copy of the state after all of the row's tokens."""
        if self._place is None:
            return self._layout.snapshot(self._caches)
        return self._layout.snapshot_row(self._caches, self._place)


class PrefillGroup:
    """Prompts that are prefilled together, each from the end of its cached tokens."""

    def __init__(self, model: LoadedModel, layout: CacheLayout, rows: list[Row], caches: list[Any]):
        """`caches` has the caches of each row, with the row's `done_tokens` tokens in them."""
        self.rows = rows
        self._model = model
        self._layout = layout
        self._merged = len(rows) > 1
        self._caches: list[Any] = layout.merge(caches) if self._merged else caches[0]
        if not self._merged:
            _grow_by(self._caches, rows[0].rest_tokens + 1)

    @property
    def reserved_tokens(self) -> int:
        """Length in tokens for which each row's cache has room."""
        return max(row.prefill_tokens for row in self.rows)

    @property
    def rest_tokens(self) -> int:
        """Most tokens that a row of the group has left to prefill."""
        return max(row.rest_tokens for row in self.rows)

    @property
    def depth_tokens(self) -> int:
        return max(row.done_tokens for row in self.rows)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def run(self, chunk_tokens: int) -> int:
        """Prefills up to `chunk_tokens` of each prompt, but not beyond its next checkpoint. Returns
        how many tokens of all prompts were prefilled. Waits for the device."""
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
        """Returns how many tokens of each prompt the next step prefills."""
        counts = [min(chunk_tokens, row.next_stop() - row.done_tokens) for row in self.rows]
        if min(counts) < max(counts) and not self._layout.supports_padding:
            return [min(counts)] * len(counts)
        return counts

    def view(self, row: Row) -> RowView:
        place = self.rows.index(row) if self._merged else None
        return RowView(self._layout, self._caches, place, row.done_tokens)

    def remove(self, row: Row) -> None:
        place = self.rows.index(row)
        self._keep([i for i in range(len(self.rows)) if i != place])

    def take_finished(self) -> "PrefillGroup | None":
        """Removes the rows that are prefilled up to their last token and returns them with their
        caches as a group; None if there are none."""
        ready = [i for i, row in enumerate(self.rows) if row.rest_tokens == 0]
        if not ready:
            return None
        finished = copy.copy(self)
        if len(ready) == len(self.rows):
            self.rows, self._caches = [], []
            return finished
        # A cheap copy: the arrays are shared until one is written.
        finished._caches = copy.deepcopy(self._caches)
        finished._keep(ready)
        self._keep([i for i in range(len(self.rows)) if i not in ready])
        return finished

    def take_surplus(self, most: int) -> list[Row]:
        """Removes and returns the last waiting choices, so that at most `most` rows remain."""
        surplus = sum(len(row.choices) for row in self.rows) - most
        taken: list[Row] = []
        for row in reversed(self.rows):
            while row.waiting_choices and len(taken) < surplus:
                taken.append(row.waiting_choices.pop())
        return taken

    def spread(self) -> None:
        """Makes a row of each choice that waited for a row's prefill, with a copy of that row's
        caches."""
        counts = [len(row.choices) for row in self.rows]
        if max(counts) == 1:
            return
        if not self._merged:
            self._caches, self._merged = self._layout.merge([self._caches]), True
        _filter(self._caches, [at for at, count in enumerate(counts) for _ in range(count)])
        self.rows = [each for row in self.rows for each in (row, *row.release_waiting_choices())]

    def release(self) -> tuple[list[Any], bool]:
        """Returns the caches, and True if they are batch caches."""
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

    A pass needs the last tokens only on the device, so it is launched before the host reads them
    and makes their text. If a row is constrained, the pass has two halves: the model's forward pass
    is launched as before, and the sampling, which is quick, waits for that text, since the text
    determines the constraint. A row that ends has therefore been fed its last token, too.
    """

    def __init__(self, model: LoadedModel, layout: CacheLayout) -> None:
        self.rows: list[Row] = []
        self._model = model
        self._layout = layout
        self._caches: list[Any] = []
        self._merged = False
        self._lengths: list[int] = []
        """Number of tokens in the cache of each row."""
        self._next: mx.array | None = None
        """[rows]: the tokens that the next pass feeds."""
        self._logits: mx.array | None = None
        """[rows, V]: the logits of the last pass, from which no tokens have been picked yet."""
        self._ready: Picked | None = None
        """Tokens that have been picked and not returned by `step` yet."""
        self._picker: Picker | None = None
        self._fresh = 0
        """Number of rows, at the end of `rows`, that have not been fed since they joined."""
        self._passes = 0

    @property
    def depth_tokens(self) -> int:
        return max(self._lengths)

    @property
    def reserved_tokens(self) -> int:
        """Length in tokens of the longest row after the next pass."""
        return self.depth_tokens + 1

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def join(self, group: PrefillGroup) -> None:
        """Adds rows that are prefilled up to their last token."""
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
        """Starts the missing part of a pass, unless there are tokens that `step` has not returned
        yet. The rows must have taken all tokens that it has returned."""
        if self._ready is None:
            if self._logits is None:
                self._feed()
            self._pick()

    def step(self, *, ahead: bool) -> tuple[list[int], dict[int, TopLogprobs]]:
        """Returns the next token of each row, and the log probabilities of rows that report them,
        by index of the row. With `ahead`, it first starts the next pass, as far as that does not
        depend on the text of these tokens; `launch` starts the rest."""
        self.launch()
        ready = self._ready
        assert ready is not None
        self._ready = None
        if ahead and not self._feed().has_constraints:
            self._pick()
        return ready.read()

    @property
    def is_ahead(self) -> bool:
        """True if only the sampling of the last pass is missing."""
        return self._logits is not None

    def _feed(self) -> Picker:
        """Launches the model's half of a pass and returns the picker for the other half."""
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
        if self._picker.has_constraints:
            mx.async_eval(logits)
        return self._picker

    def _settle(self) -> None:
        """Keeps the lazy graph of the caches short: each pass updates their arrays of padding and
        offsets, which no layer may ever evaluate."""
        if not self._merged:
            return
        if self._fresh:
            _finish_padding(self._caches)
        self._passes += 1
        if self._passes % SETTLE_PASSES == 0:
            mx.async_eval([cache.state for cache in self._caches])

    def _pick(self) -> None:
        assert self._logits is not None
        # The rows may have changed since the first half.
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
    """Sets the number of tokens by which the KV of a single row grows at a time. A long prompt is
    allocated at once, since growing with each chunk would copy all of its KV each time."""
    steps = -(-tokens // KVCache.step)
    for leaf in flatten(caches):
        if isinstance(leaf, KVCache | QuantizedKVCache):
            leaf.step = max(1, steps) * KVCache.step


def _finish_padding(caches: list[Any]) -> None:
    """Finalizes batch caches after their first pass: moves KV that is padded on the right, and
    clears the padding of states, also one of zero tokens, which mlx-lm would update in each
    pass."""
    for cache in caches:
        cache.finalize()


def _filter(caches: list[Any], places: list[int]) -> None:
    """Keeps only the rows at these indices of batch caches. Copies KV that became shorter, since
    mlx-lm keeps a view of the longer array, which would not be freed."""
    for leaf in flatten(caches):
        end = leaf._idx if isinstance(leaf, BatchKVCache) else 0
        leaf.filter(places)
        if isinstance(leaf, BatchKVCache) and leaf._idx < end and leaf.keys is not None:
            leaf.keys, leaf.values = tree_map(detached, (leaf.keys, leaf.values))
    mx.async_eval([leaf.state for leaf in flatten(caches)])
