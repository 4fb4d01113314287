"""Several choices, log probabilities and constraints that cannot be enforced, at a running
agent."""

from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script
from node.protocol.messages import Finished
from tests.node.serving import data_of, running

OUTPUTS = ("Yes.", "No, not at all.", "So be it")
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]


def streamed_texts(chunks: list[Any]) -> list[str]:
    texts = [""] * len(OUTPUTS)
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            texts[choice["index"]] += piece
    return texts


@pytest.mark.parametrize(
    ("path", "body"), [("chat/completions", CHAT), ("completions", {"prompt": "hello"})]
)
async def test_several_choices_are_returned_streamed_and_whole(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    request = {"model": "scripted", "n": 3, **body}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    async with running(tmp_path, Script(outputs=OUTPUTS)) as agent:
        streamed = await agent.client.post(f"/v1/{path}", json={**request, **stream})
        whole = (await agent.client.post(f"/v1/{path}", json=request)).json()
    *chunks, usage, done = data_of(streamed.text)
    assert done == "[DONE]"
    assert sorted(streamed_texts(chunks)) == sorted(OUTPUTS)
    ends = [
        (each["index"], each["finish_reason"])
        for chunk in chunks
        for each in chunk["choices"]
        if each["finish_reason"]
    ]
    assert sorted(ends) == [(index, "stop") for index in range(3)]
    assert [each["index"] for each in whole["choices"]] == [0, 1, 2]
    for field in ("prompt_tokens", "completion_tokens"):
        assert usage["usage"][field] == whole["usage"][field]


async def test_each_token_of_content_has_a_log_probability(tmp_path: Path) -> None:
    async with running(tmp_path, Script(outputs=("Yes, it is.",))) as agent:
        fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
        whole = (await agent.chat(**fields)).json()["choices"][0]
        streamed = await agent.chat(**fields, stream=True)
        completion = await agent.client.post(
            "/v1/completions", json={"model": "scripted", "prompt": "a", "logprobs": 1}
        )
    tokens = whole["logprobs"]["content"]
    assert "".join(each["token"] for each in tokens) == whole["message"]["content"]
    assert all(each["top_logprobs"][0]["token"] == each["token"] for each in tokens)
    streamed_tokens = [
        each
        for chunk in data_of(streamed.text)[:-1]
        for choice in chunk["choices"]
        if choice["logprobs"]
        for each in choice["logprobs"]["content"]
    ]
    assert streamed_tokens == tokens
    legacy = completion.json()["choices"][0]
    assert "".join(legacy["logprobs"]["tokens"]) == legacy["text"] == "Yes, it is."


NOT_CONSTRAINED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("guided_regex", {"guided_regex": "a+"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "required"}),
    ("function_call", {"functions": [TOOLS[0]["function"]], "function_call": {"name": "f"}}),
    ("n", {"n": 16}),
)


async def test_a_constraint_that_an_engine_lacks_is_a_400_that_names_the_field(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, Script(max_rows=4)) as agent, agent.events() as events:
        for param, fields in NOT_CONSTRAINED:
            for stream in (False, True):
                refused = await agent.chat(**fields, stream=stream)
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == param
        assert (await agent.chat(max_tokens=1)).status_code == 200
        assert (await events.next(Finished)).seq == 1
