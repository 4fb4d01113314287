"""Options of responses and messages that control the response, at a running agent."""

from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script
from tests.node.serving import RunningAgent, data_of, running

SCHEMA = {"type": "object"}
HELLO = [{"role": "user", "content": "hello"}]
THOUGHT = "<think>" + "so " * 60 + "</think>Yes, it is."
THINKS: dict[str, Any] = {"reasoning_parsers": (("", "think"),)}


async def respond(agent: RunningAgent, **fields: Any) -> Any:
    body = {"model": "scripted", "input": "hello", **fields}
    return await agent.client.post("/v1/responses", json=body)


async def message(agent: RunningAgent, path: str = "", **fields: Any) -> Any:
    body = {"model": "scripted", "messages": HELLO, **fields}
    if not path:
        body["max_tokens"] = 400
    return await agent.client.post(f"/v1/messages{path}", json=body)


async def test_a_constraint_that_the_engine_lacks_is_refused_by_the_body_s_own_path(
    tmp_path: Path,
) -> None:
    shape = {"type": "json_schema", "schema": SCHEMA}
    tool = {"name": "f", "input_schema": SCHEMA}
    async with running(tmp_path) as agent:
        for stream in (False, True):
            answer = await respond(agent, text={"format": {**shape, "name": "n"}}, stream=stream)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "text.format.schema"
            answer = await message(agent, output_config={"format": shape}, stream=stream)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith("output_config.format.schema: ")
            answer = await message(agent, tools=[tool], tool_choice={"type": "any"}, stream=stream)
            assert answer.json()["error"]["message"].startswith("tool_choice: ")


async def test_a_token_count_accepts_the_fields_of_a_message_request(tmp_path: Path) -> None:
    tools = [{"name": "f", "input_schema": SCHEMA}]
    async with running(tmp_path) as agent:
        plain = await message(agent, "/count_tokens", tools=tools)
        counted = await message(
            agent,
            "/count_tokens",
            tools=tools,
            tool_choice={"type": "tool", "name": "f"},
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
            output_format={"type": "json_schema", "schema": SCHEMA},
        )
    assert counted.status_code == 200
    assert counted.json() == plain.json()


async def test_the_probabilities_of_a_response_are_streamed_returned_whole_and_stored(
    tmp_path: Path,
) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    async with running(tmp_path, Script(outputs=("Yes, it is.",))) as agent:
        whole = (await respond(agent, **fields)).json()
        events = data_of((await respond(agent, **fields, stream=True)).text)
        stored = (await agent.client.get(f"/v1/responses/{whole['id']}")).json()
        follow_up = await respond(agent, previous_response_id=whole["id"])
    logprobs = whole["output"][0]["content"][0]["logprobs"]
    assert "".join(each["token"] for each in logprobs) == "Yes, it is."
    assert all(each["top_logprobs"][0]["token"] == each["token"] for each in logprobs)
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    assert [token for each in deltas for token in each["logprobs"]] == logprobs
    assert stored == whole
    assert follow_up.json()["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize("budget", [0, 1, 17])
async def test_a_budget_ends_the_thinking_and_the_answer_follows(
    tmp_path: Path, budget: int
) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    async with running(tmp_path, Script(outputs=(THOUGHT,)), **THINKS) as agent:
        messages = (await message(agent, thinking=thinking)).json()
        response = (await respond(agent, reasoning={"max_tokens": budget})).json()
        free = (await respond(agent)).json()
    details = response["usage"]["output_tokens_details"]
    within = details["reasoning_tokens"] - details["reasoning_overflow_tokens"]
    assert within == budget
    used = messages["usage"]["output_tokens_details"]["thinking_tokens"]
    assert used == details["reasoning_tokens"]
    assert free["usage"]["output_tokens_details"]["reasoning_tokens"] > used
    assert messages["content"][-1]["type"] == "text"
    assert messages["content"][-1]["text"]
    assert response["reasoning"]["max_tokens"] == budget
    assert response["output"][-1]["type"] == "message"
