"""Prompts that go through a model together: padded only where it distinguishes padding, and
nothing is left of it in the caches."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from node.engine.kv.cache_tree import flatten
from node.engine.model.load import LoadedModel
from tests.mlx.driver import Driver, make_spec, prompt
from tests.mlx.kinds import PADDING_BLIND

pytestmark = pytest.mark.mlx

PASSES = 300
MOST_NODES = 200
"""Behind any array of a cache, whatever was before: less than one for each pass."""


def test_it_is_known_of_each_kind_whether_it_supports_padding(kind: Path) -> None:
    with Driver(kind) as engine:
        supports = engine.call(lambda: engine.engine._layout.supports_padding)
        assert supports is (kind.name not in PADDING_BLIND)


def test_a_model_that_supports_no_padding_at_all_is_logged_and_gets_none(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Driver(tiny, change=lambda model: replace(model, network=_Odd(model.network))) as engine:
        assert not engine.call(lambda: engine.engine._layout.supports_padding)
        assert "takes no padded prompts: not two rows" in caplog.text


class _Odd:
    """A network that runs one sequence at a time."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.layers = network.layers

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if tokens.shape[0] > 1:
            raise ValueError("not two rows")
        logits: mx.array = self._network(tokens, cache=cache)
        return logits


def test_passes_leave_no_growing_graph_behind_the_caches(kind: Path) -> None:
    with Driver(kind, change=_endless) as engine:
        # Of prompts of one token nothing is prefilled.
        for uid in "ab":
            engine.submit(uid, prompt(1, ord(uid)), max_tokens=PASSES + 100)
        _passes(engine, 20)
        for uid in "cd":
            engine.submit(uid, prompt(40, ord(uid)), max_tokens=5)
        _passes(engine, PASSES)
        assert engine.rows["d"].finish is not None
        assert engine.call(lambda: _deepest(engine)) <= MOST_NODES


def test_prompts_of_equal_length_leave_no_mask(kind: Path) -> None:
    # A mask of states would keep mlx-lm's quicker kernels off.
    with Driver(kind, change=_endless) as engine:
        for uid in "ab":
            engine.submit(uid, prompt(40, ord(uid)), max_tokens=30)
        _passes(engine, 3)
        (batch,) = engine.engine._running.batches
        assert all(
            leaf.left_padding is None
            for leaf in flatten(batch._caches)
            if type(leaf).__name__ == "ArraysCache"
        )


def test_prompts_that_may_not_be_padded_go_on_together_to_the_end_of_the_shortest(
    kind: Path,
) -> None:
    with Driver(kind, spec=make_spec(kind, prefill_chunk_tokens=4096)) as engine:
        for length in (20, 50):
            engine.submit(f"{length}", prompt(length, length), max_tokens=2)
        engine.step()
        inside = {row.uid: row.done_tokens for row in engine.engine._rows()}
        together = 19 if kind.name in PADDING_BLIND else 49
        assert inside == {"20": 19, "50": together}


def _endless(model: LoadedModel) -> LoadedModel:
    return replace(model, end_tokens=frozenset())


def _passes(engine: Driver, count: int) -> None:
    """Until the first sequence has so many tokens of output, reported or not."""
    while engine.row("a").token_count < count:
        engine.step()


def _deepest(engine: Driver) -> int:
    """Most nodes of a graph that is not evaluated, behind one array of the caches."""
    (batch,) = engine.engine._running.batches
    leaves: Any = tree_flatten([leaf.state for leaf in flatten(batch._caches)])
    arrays = [array for _, array in leaves if isinstance(array, mx.array)]
    return max(_nodes(array) for array in arrays)


def _nodes(array: mx.array) -> int:
    with tempfile.NamedTemporaryFile("r", suffix=".dot") as file:
        mx.export_to_dot(file.name, array)
        return file.read().count("shape=rectangle")
