"""What a node tells of its prefixes, and what a real engine then reuses."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from node.prefix_digest import PrefixDigest
from node.protocol.prefix import Chain
from tests.mlx.driver import Driver, prompt
from tests.node.listening import Conversation, Listener, user
from tests.node.serving import running

pytestmark = pytest.mark.mlx

STORY = (
    "A small ship left the harbour at dawn, and nobody on the quay knew where it was going. The "
    "baker said north, the smith said south; the children, who had asked the sailors, said nothing."
)
TURNS = ("Where did it go?", "Who knew? " + STORY, "Why?", "And then? " * 20, "Is that all?")


@pytest.mark.timeout(240)
async def test_a_session_reuses_what_was_told_and_little_more(
    smollm2: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {
        "engine": "text",
        "script": None,
        "models": (smollm2,),
        "served_model_names": ("m",),
        "kv_disk_bytes": 0,
        "memory_limit_bytes": 3 << 30,
    }
    async with running(tmp_path, **fields) as agent, Listener(agent, "m") as listener:
        messages: Conversation = [{"role": "system", "content": STORY}]
        for turn, text in enumerate(TURNS):
            messages.append(user(text))
            predicted, cached, answer = await listener.ask(messages)
            assert predicted <= cached <= predicted + 16
            assert (predicted > 0) == (turn > 0)
            messages.append({"role": "assistant", "content": answer})


def test_what_is_told_of_any_kind_of_cache_is_what_is_reused(kind: Path) -> None:
    with Driver(kind) as engine:
        digest = PrefixDigest(snapshot_only=engine.engine.info.snapshot_only)
        tokens, ends = prompt(120, 1), [40, 100]
        for turn in range(5):
            uid, chain = f"{turn}", _chain_of(len(ends))
            known = [entry for each in chain.hashes if (entry := digest.entry(each))]
            told = known[-1].usable_tokens if known else 0
            digest.on_request(uid, chain, ends, len(tokens))
            engine.submit(uid, tokens, max_tokens=12, boundaries=tuple(ends))
            engine.run()
            usage = engine.rows[uid].usage
            assert usage is not None and told <= usage.cached_tokens <= told + 16
            assert (told > 0) == (turn > 0)
            digest.on_events(engine.call(engine.engine.take_cache_events))
            digest.on_answer(uid, _chain_of(len(ends) + 1), None)
            digest.on_end(uid)
            answered = (*tokens, *engine.outputs[uid])
            tokens = (*answered, *prompt(60, turn + 2))
            ends += [len(answered), len(tokens) - 5]


def _chain_of(length: int) -> Chain:
    """Of so many positions, whose hashes are 1, 2, 3 …"""
    hashes = array("Q", range(1, length + 1))
    return Chain(hashes, array("I", range(1, length + 1)), array("I"), 0)
