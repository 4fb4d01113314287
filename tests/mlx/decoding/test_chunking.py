"""Measures the memory of a chunk of prefill beside the KV that it keeps."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from node.engine.decoding.chunking import MIN_CHUNK_TOKENS
from node.models.attention_scratch import attention_scores
from tests.mlx.driver import Driver, make_spec, prompt
from tests.mlx.kinds import make_kind

pytestmark = pytest.mark.mlx

CHUNK_TOKENS = 256
DEPTH_TOKENS = 3000
OTHER_BYTES = 3 << 20
"""Activations of such a chunk, and its own KV, in a tiny model."""


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_5", "deepseek_v3", "deepseek_v32"])
def test_a_chunk_holds_no_more_scores_than_estimated_from_the_config(
    kind: str, tmp_path: Path
) -> None:
    folder = make_kind(kind, tmp_path / kind)
    per_pair = attention_scores(json.loads((folder / "config.json").read_bytes())).bytes_per_pair
    with Driver(folder, spec=make_spec(folder, prefill_chunk_tokens=CHUNK_TOKENS)) as engine:
        engine.submit("a", prompt(DEPTH_TOKENS + 2 * CHUNK_TOKENS, 1), max_tokens=1)
        row = engine.row("a")
        while row.done_tokens < DEPTH_TOKENS:
            engine.step()
        depth_tokens = row.done_tokens
        before_bytes = engine.call(_settled_bytes)
        engine.step()
        tokens = row.done_tokens - depth_tokens
        used_bytes = mx.get_peak_memory() - before_bytes
    assert tokens > CHUNK_TOKENS // 4
    assert used_bytes <= tokens * (depth_tokens + tokens) * per_pair + OTHER_BYTES


def test_an_engine_keeps_its_chunks_within_the_scratch(tiny: Path) -> None:
    spec = make_spec(tiny, score_bytes_per_pair=32, prefill_scratch_bytes=32 * 100 * 1000)
    with Driver(tiny, spec=spec) as engine:
        engine.submit("a", prompt(3000, 1), max_tokens=1)
        row, lengths = engine.row("a"), list[int]()
        while row.rest_tokens:
            before_tokens = row.done_tokens
            engine.step()
            lengths.append(row.done_tokens - before_tokens)
        engine.run()
        # The last one is what is left.
        assert lengths[0] > lengths[-2] >= MIN_CHUNK_TOKENS
        assert lengths[-2] * 3000 <= 100 * 1000
        engine.assert_greedy("a", prompt(3000, 1), 1)


def _settled_bytes() -> int:
    mx.clear_cache()
    mx.reset_peak_memory()
    return mx.get_active_memory()
