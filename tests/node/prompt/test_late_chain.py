"""A chain is computed once, and only when it is needed."""

import threading
from array import array
from pathlib import Path

import pytest

from node.engine.scripted.script import Script, ScriptedModel
from node.prompt.late_chain import LateChain
from node.protocol.chain.prefix import Chain, PrefixHasher
from tests.node.serving import running

CHAIN = Chain(array("Q", [1]), array("I", [10]), array("I", [1]), 0)


@pytest.mark.parametrize("is_long", [False, True])
async def test_it_is_made_once_and_in_a_thread_where_it_is_long(*, is_long: bool) -> None:
    made: list[bool] = []

    def make() -> Chain:
        made.append(threading.current_thread() is threading.main_thread())
        return CHAIN

    late = LateChain(make, is_long=is_long)
    found = [late.chain, await late.compute(), await late.compute(), late.chain]
    assert found == [None, CHAIN, CHAIN, CHAIN]
    assert made == [not is_long]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 400}]}),
        ("/v1/completions", {"prompt": "x" * 400}),
        ("/v1/responses", {"input": "x" * 400}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 9}),
    ],
)
async def test_none_is_made_of_a_prompt_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    made: list[str] = []
    chain = PrefixHasher.chain

    def counting(
        self: PrefixHasher, fields: object, path: str, *rest: object, **more: object
    ) -> object:
        made.append(path)
        return chain(self, fields, path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(PrefixHasher, "chain", counting)
    script = Script(models=(ScriptedModel("short", context_tokens=50), ScriptedModel("long")))
    async with running(tmp_path, script) as agent:
        refused = await agent.client.post(path, json={"model": "short", **body})
        assert (refused.status_code, made) == (400, [])
        taken = await agent.client.post(path, json={"model": "long", **body})
        assert (taken.status_code, made) == (200, [path])
