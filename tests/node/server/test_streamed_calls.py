"""Arguments of calls as clients receive them, in each dialect, over a real socket."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script
from node.protocol.messages import Finished, FinishReason
from tests.node.serving import RunningAgent, data_of, running

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
TEXT = "def f(x):\n    return \"é\" if x else 'b'  # \\d\n" * 20
ARGUMENTS = {"path": "a.py", "text": TEXT}
CALL = f"<tool_call>\n{json.dumps({'name': 'write', 'arguments': ARGUMENTS})}\n</tool_call>"
BROKEN = CALL[:200] + '", so it goes.</tool_call>'
USER = [{"role": "user", "content": "Go."}]
CUT_TOKENS = 60

CHAT: dict[str, Any] = {
    "messages": USER,
    "tools": [{"type": "function", "function": {"name": "write", "parameters": SCHEMA}}],
}
LEGACY: dict[str, Any] = {
    "messages": USER,
    "functions": [{"name": "write", "parameters": SCHEMA}],
}
MESSAGES: dict[str, Any] = {
    "messages": USER,
    "max_tokens": 9999,
    "tools": [{"name": "write", "input_schema": SCHEMA}],
}
RESPONSES: dict[str, Any] = {
    "input": "Go.",
    "tools": [{"type": "function", "name": "write", "parameters": SCHEMA}],
}
REQUESTS = {
    "chat": ("/v1/chat/completions", CHAT),
    "legacy": ("/v1/chat/completions", LEGACY),
    "messages": ("/v1/messages", MESSAGES),
    "responses": ("/v1/responses", RESPONSES),
}
DIALECTS = sorted(REQUESTS)
HERMES: dict[str, Any] = {"tool_parsers": (("", "hermes"),)}


def piece_of(event: Any) -> str:
    """Returns the piece of arguments in an event of any dialect."""
    if "choices" in event:
        deltas = [choice["delta"] for choice in event["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        functions = [call["function"] for call in calls]
        functions += [delta["function_call"] for delta in deltas if "function_call" in delta]
        return "".join(each["arguments"] for each in functions)
    if event["type"] == "response.function_call_arguments.delta":
        return str(event["delta"])
    delta = event.get("delta") if event["type"] == "content_block_delta" else None
    return str((delta or {}).get("partial_json", ""))


def pieces_of(text: str) -> list[str]:
    pieces = [piece_of(event) for event in data_of(text) if event != "[DONE]"]
    return [piece for piece in pieces if piece]


def whole_of(body: Any) -> str:
    """Returns the arguments of the only call of a whole response; an object as compact JSON."""
    if "choices" in body:
        message = body["choices"][0]["message"]
        if "function_call" in message:
            return str(message["function_call"]["arguments"])
        return str(message["tool_calls"][0]["function"]["arguments"])
    if "output" in body:
        return str(body["output"][0]["arguments"])
    return json.dumps(body["content"][0]["input"])


async def ask(agent: RunningAgent, dialect: str, *, stream: bool, **fields: Any) -> Any:
    path, body = REQUESTS[dialect]
    given = {"model": "scripted", "stream": stream, **body, **fields}
    return await agent.client.post(path, json=given)


def limit(dialect: str) -> dict[str, int]:
    return {"max_output_tokens" if dialect == "responses" else "max_tokens": CUT_TOKENS}


async def events_of(agent: RunningAgent, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
    """Yields each event of a stream as it arrives."""
    given = {"model": "scripted", "stream": True, **body}
    async with agent.client.stream("POST", path, json=given) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_arguments_are_streamed_while_the_model_writes_them(
    tmp_path: Path, dialect: str
) -> None:
    # The model never gets to the end of the call.
    script = Script(outputs=(CALL,), stall_after_tokens=100)
    async with running(tmp_path, script, **HERMES) as agent:
        path, body = REQUESTS[dialect]
        arguments = ""
        async for event in events_of(agent, path, body):
            arguments += piece_of(event)
            if len(arguments) > 300:
                break
    assert json.dumps(ARGUMENTS).startswith(arguments)


async def test_the_text_of_a_custom_tool_is_streamed_while_the_model_writes_it(
    tmp_path: Path,
) -> None:
    call = CALL.replace(json.dumps(ARGUMENTS), json.dumps({"input": TEXT}))
    tool = {"type": "custom", "name": "write"}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": "Go.", "tools": [tool]},
        "/v1/chat/completions": {
            "messages": USER,
            "tools": [{"type": "custom", "custom": {"name": "write"}}],
        },
    }
    script = Script(outputs=(call,), stall_after_tokens=100)
    async with running(tmp_path, script, **HERMES) as agent:
        for path, body in bodies.items():
            text = ""
            async for event in events_of(agent, path, body):
                if event.get("type") == "response.custom_tool_call_input.delta":
                    text += event["delta"]
                for choice in event.get("choices", ()):
                    for each in choice["delta"].get("tool_calls", ()):
                        text += each["custom"]["input"]
                if len(text) > 200:
                    break
            assert TEXT.startswith(text)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_pieces_are_the_json_of_the_answer_that_is_not_streamed(
    tmp_path: Path, dialect: str
) -> None:
    # Values that the schema makes others, and JSON as nobody else would write it.
    other = '<tool_call>{"name":"write","arguments":{"path":7,  "text":"\\d\t"}}</tool_call>'
    for output in (CALL, other):
        async with running(tmp_path, Script(outputs=(output,)), **HERMES) as agent:
            streamed = pieces_of((await ask(agent, dialect, stream=True)).text)
            whole = whole_of((await ask(agent, dialect, stream=False)).json())
        if dialect == "messages":
            assert json.loads("".join(streamed)) == json.loads(whole)
        else:
            assert "".join(streamed) == whole
        assert len(streamed) > 2


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_node_may_send_whole_calls_only(tmp_path: Path, dialect: str) -> None:
    outputs = (CALL, BROKEN)
    async with running(tmp_path, Script(outputs=outputs), tool_stream=False, **HERMES) as agent:
        answer = await ask(agent, dialect, stream=True)
        (piece,) = pieces_of(answer.text)
        assert json.loads(piece) == ARGUMENTS
        # What is no call is text.
        answer = await ask(agent, dialect, stream=False)
        assert answer.status_code == 200
        assert "so it goes." in answer.text


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_response_that_is_cut_within_a_call_reports_it(
    tmp_path: Path, dialect: str
) -> None:
    async with (
        running(tmp_path, Script(outputs=(CALL,)), **HERMES) as agent,
        agent.events() as news,
    ):
        text = (await ask(agent, dialect, stream=True, **limit(dialect))).text
        first = await news.next(Finished)
        whole = (await ask(agent, dialect, stream=False, **limit(dialect))).json()
        second = await news.next(Finished)
    begun = "".join(pieces_of(text))
    assert len(begun) > 100
    assert json.dumps(ARGUMENTS).startswith(begun)
    if dialect == "messages":
        assert (whole_of(whole), whole["stop_reason"]) == ("{}", "max_tokens")
        assert '"stop_reason":"max_tokens"' in text
        assert '"output_tokens":60' in text
    else:
        assert whole_of(whole) == begun
    if dialect == "responses":
        assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")
        kinds = [event["type"] for event in data_of(text)]
        # Clients run what is done.
        assert not any(kind.endswith(".done") for kind in kinds)
        last = data_of(text)[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["output"][0]["arguments"] == begun
        assert last["response"]["output"][0]["status"] == "incomplete"
    elif dialect != "messages":
        assert whole["choices"][0]["finish_reason"] == "length"
        assert '"finish_reason":"length"' in text
    for usage in (first, second):
        assert (usage.reason, usage.completion_tokens) == (FinishReason.LENGTH, CUT_TOKENS)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_that_breaks_off_fails_the_answer(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with (
        running(tmp_path, Script(outputs=(BROKEN,)), **HERMES) as agent,
        agent.events() as news,
    ):
        answer = await ask(agent, dialect, stream=stream)
        usage = await news.next(Finished)
    assert "so it goes" not in answer.text
    # Where all of it arrived at once, the stream had not begun.
    last = data_of(answer.text)[-1] if answer.status_code == 200 else answer.json()
    assert answer.status_code == 500 or stream
    error = last["response"]["error"] if "response" in last else last["error"]
    assert error["message"] == (
        "The model broke off its call of write: it left the format of its calls."
    )
    # The engine completed the request.
    assert usage.reason is FinishReason.STOP
    assert usage.completion_tokens > 40


async def test_a_session_goes_on_behind_a_call_that_was_cut(tmp_path: Path) -> None:
    async with running(tmp_path, Script(outputs=(CALL, "So.")), **HERMES) as agent:
        cut = (await ask(agent, "responses", stream=True, **limit("responses"))).text
        before = data_of(cut)[-1]["response"]["id"]
        again = {"model": "scripted", "input": "Go on.", "previous_response_id": before}
        answer = await agent.client.post("/v1/responses", json=again)
        assert answer.status_code == 200, answer.text
        assert answer.json()["output"][0]["content"][0]["text"] == "So."
