"""The real model in the engine: together, from the cache and alone it generates the same."""

from pathlib import Path

import pytest

from node.ipc.messages import DiskCache
from tests.mlx.driver import Driver, make_spec

pytestmark = pytest.mark.mlx

ANSWER_TOKENS = 6
STORY = (
    "A small ship left the harbour at dawn, and nobody on the quay knew where it was going. The "
    "baker said north, the smith said south; the children, who had asked the sailors, said nothing "
    "at all. In the evening the wind turned, and with it came the first letters. "
)


def test_sequences_of_unlike_lengths_generate_together_what_the_bare_model_does_alone(
    smollm2: Path,
) -> None:
    with Driver(smollm2) as engine:
        story = engine.ids(STORY * 6)
        prompts = {f"{length}": story[-length:] for length in (1, 7, 33, 257)}
        for uid, tokens in prompts.items():
            engine.submit(uid, tokens, max_tokens=ANSWER_TOKENS)
        engine.run()
        for uid, tokens in prompts.items():
            engine.assert_greedy(uid, tokens)


def test_memory_disk_and_a_cold_run_generate_the_same(smollm2: Path, tmp_path: Path) -> None:
    spec = make_spec(smollm2, disk=DiskCache(str(tmp_path), max_bytes=1 << 30))
    with Driver(smollm2, spec=spec) as engine:
        story = engine.ids(STORY)[:56]
        for cut in (56, 55, 33, 32, 31, 1):
            tokens = story[:cut] + engine.ids(" Then the")
            engine.submit(f"{cut}", tokens, max_tokens=ANSWER_TOKENS, reusable_tokens=cut)
            usage = engine.run()[f"{cut}"].usage
            assert usage is not None and usage.cached_tokens == (0 if cut == 56 else cut)
            engine.assert_greedy(f"{cut}", tokens, ANSWER_TOKENS)
        wanted = engine.outputs["33"]
    with Driver(smollm2, spec=spec) as engine:
        tokens = story[:33] + engine.ids(" Then the")
        engine.submit("disk", tokens, max_tokens=ANSWER_TOKENS)
        usage = engine.run()["disk"].usage
        assert usage is not None and usage.cached_tokens == 33
        engine.assert_alike(tokens, engine.outputs["disk"], wanted)
