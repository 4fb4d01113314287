"""Requests of each dialect to an agent, streamed and not, and what a client understands."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests.node.parsing.reading import TOOLS
from tests.node.serving import RunningAgent, data_of


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a client received."""

    name: str
    arguments: str
    """JSON text: of a stream, all that its pieces make."""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens."""

    prompt: int
    cached: int
    completion: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The contents of an answer that a client understands."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()
    finish: str = ""
    """In the dialect's word."""
    usage: Usage | None = None
    kinds: Sequence[str] = field(default=(), compare=False)
    """Kinds of content blocks or output items, in order."""

    def without_ids(self) -> "Answer":
        """Ids of calls are each answer's own."""
        return replace(self, calls=tuple(replace(call, call_id="") for call in self.calls))

    def content_and_calls(self) -> tuple[str, str, list[tuple[str, Any]]]:
        """(content, reasoning, calls)."""
        calls = [(call.name, json.loads(call.arguments)) for call in self.calls]
        return self.content, self.reasoning, calls


Ask = Callable[..., Awaitable[Answer]]
"""Asks an agent. The fields go into the body; those of None do not. `tools` are schemas of
arguments by name."""
Fields = dict[str, Any]
Tools = Mapping[str, Mapping[str, Any]]


async def post(agent: RunningAgent, path: str, body: Fields) -> httpx.Response:
    given = {name: value for name, value in body.items() if value is not None}
    return await agent.client.post(path, json={"model": "scripted", **given})


def _read(response: httpx.Response, *, stream: bool) -> Any:
    assert response.status_code == 200, response.text
    kind = "text/event-stream" if stream else "application/json"
    assert response.headers["content-type"] == kind
    return data_of(response.text) if stream else response.json()


# --- chat ------------------------------------------------------------------------------------


async def chat(
    agent: RunningAgent, *, stream: bool, tools: Tools | None = TOOLS, **fields: Any
) -> Answer:
    """At `/v1/chat/completions`."""
    listed = [
        {"type": "function", "function": {"name": name, "parameters": dict(schema)}}
        for name, schema in (tools or {}).items()
    ]
    body: Fields = {"messages": [{"role": "user", "content": "hello"}], "tools": listed or None}
    body |= {"stream": stream, "stream_options": {"include_usage": True} if stream else None}
    read = _read(await post(agent, "/v1/chat/completions", body | fields), stream=stream)
    return _chat_stream(read) if stream else _chat_whole(read)


def _chat_whole(body: Any) -> Answer:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [
        Call(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in message.get("tool_calls", ())
    ]
    assert message["content"] is not None or calls
    return Answer(
        message["content"] or "",
        message.get("reasoning_content", ""),
        calls,
        choice["finish_reason"],
        _chat_usage(body["usage"]),
    )


def _chat_stream(events: list[Any]) -> Answer:
    *chunks, last, done = events
    assert done == "[DONE]"
    assert last["choices"] == []
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    assert [delta.get("role") for delta in deltas if "role" in delta] == ["assistant"]
    assert not any(value is None for delta in deltas for value in delta.values())
    # Nothing is sent in or behind the chunk that ends the answer.
    finish = [choice["finish_reason"] for choice in choices]
    assert finish[:-1] == [None] * (len(finish) - 1)
    assert deltas[-1] == {}
    return Answer(
        "".join(delta.get("content", "") for delta in deltas),
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        _calls_of([call for delta in deltas for call in delta.get("tool_calls", ())]),
        finish[-1],
        _chat_usage(last["usage"]),
    )


def _calls_of(pieces: list[Any]) -> list[Call]:
    """The first piece of each call has its id and name, and none of those behind it."""
    calls: list[Call] = []
    for piece in pieces:
        function = piece["function"]
        if piece["index"] == len(calls):
            assert piece["type"] == "function"
            calls.append(Call(function["name"], function["arguments"], piece["id"]))
            continue
        assert piece["index"] == len(calls) - 1
        assert set(piece) == {"index", "function"}
        assert set(function) == {"arguments"}
        calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + function["arguments"])
    return calls


def _chat_usage(usage: Any) -> Usage:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Usage(
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
    )


# --- messages --------------------------------------------------------------------------------


async def messages(
    agent: RunningAgent, *, stream: bool, tools: Tools | None = TOOLS, **fields: Any
) -> Answer:
    """At `/v1/messages`."""
    listed = [{"name": name, "input_schema": schema} for name, schema in (tools or {}).items()]
    body: Fields = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9999}
    body |= {"tools": listed or None, "stream": stream}
    read = _read(await post(agent, "/v1/messages", body | fields), stream=stream)
    if stream:
        return _message_stream(read)
    return _message(read["content"], read["stop_reason"], read["usage"])


def _message(blocks: list[Any], finish: str, usage: Any) -> Answer:
    return Answer(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        [
            Call(block["name"], _compact(block["input"]), block["id"])
            for block in blocks
            if block["type"] == "tool_use"
        ],
        finish,
        Usage(
            usage["input_tokens"] + usage["cache_read_input_tokens"],
            usage["cache_read_input_tokens"],
            usage["output_tokens"],
            usage["output_tokens_details"]["thinking_tokens"],
        ),
        [block["type"] for block in blocks],
    )


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _message_stream(events: list[Any]) -> Answer:
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_delta") == kinds.count("message_stop") == 1
    blocks: list[Any] = []
    is_open = False
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "pieces": []})
        elif kind == "content_block_delta":
            assert is_open
            _add(blocks[-1], event["delta"])
        is_open = kind in ("content_block_start", "content_block_delta")
    for block in blocks:
        text = "".join(block.pop("pieces"))
        # A block begins with its first byte; only a call may be made without any argument.
        assert text
        field_of = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        block[field_of] = json.loads(text) if field_of == "input" else text
    ending = events[-2]
    start = events[0]["message"]["usage"]
    usage = ending["usage"]
    assert start["input_tokens"] == usage["input_tokens"]
    assert start["cache_read_input_tokens"] == usage["cache_read_input_tokens"]
    return _message(blocks, ending["delta"]["stop_reason"], usage)


def _add(block: Any, delta: Any) -> None:
    known = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
    if delta["type"] == "signature_delta":
        return
    assert delta["type"].split("_")[0] == {"tool_use": "input"}.get(block["type"], block["type"])
    block["pieces"].append(delta[known[delta["type"]]])


# --- responses -------------------------------------------------------------------------------


async def responses(
    agent: RunningAgent, *, stream: bool, tools: Tools | None = TOOLS, **fields: Any
) -> Answer:
    """At `/v1/responses`."""
    listed = [
        {"type": "function", "name": name, "parameters": schema}
        for name, schema in (tools or {}).items()
    ]
    body: Fields = {"input": "hello", "tools": listed or None, "stream": stream, "store": False}
    read = _read(await post(agent, "/v1/responses", body | fields), stream=stream)
    return _response_stream(read) if stream else _response(read)


def _response(body: Any) -> Answer:
    items = body["output"]
    parts = [part for item in items for part in item.get("content", ())]
    reason = (body["incomplete_details"] or {}).get("reason", "")
    usage = body["usage"]
    return Answer(
        "".join(part["text"] for part in parts if part["type"] == "output_text"),
        "".join(part["text"] for part in parts if part["type"] == "reasoning_text"),
        [
            Call(item["name"], item["arguments"], item["call_id"])
            for item in items
            if item["type"] == "function_call"
        ],
        reason or body["status"],
        Usage(
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        ),
        [item["type"] for item in items],
    )


def _response_stream(events: list[Any]) -> Answer:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    answer = _response(events[-1]["response"])
    assert events[-1]["type"] in ("response.completed", "response.incomplete")

    def deltas(kind: str) -> str:
        return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}")

    assert deltas("output_text.delta") == answer.content
    assert deltas("reasoning_text.delta") == answer.reasoning
    arguments = [call.arguments for call in answer.calls]
    assert deltas("function_call_arguments.delta") == "".join(arguments)
    _check_ids(events)
    return answer


def _check_ids(events: list[Any]) -> None:
    """Checks that all events about an item name it by the same ids."""
    added = {
        event["output_index"]: event["item"]
        for event in events
        if event["type"] == "response.output_item.added"
    }
    for event in events:
        item = added.get(event.get("output_index"))
        if item is None:
            continue
        assert event.get("item_id", item["id"]) == item["id"]
        done = event.get("item", item)
        assert (done["id"], done.get("call_id")) == (item["id"], item.get("call_id"))
    final = events[-1]["response"]["output"]
    assert [item["id"] for item in final] == [added[at]["id"] for at in sorted(added)]


DIALECTS: Mapping[str, Ask] = {"chat": chat, "messages": messages, "responses": responses}


async def both(ask: Ask, agent: RunningAgent, **fields: Any) -> Answer:
    """The answer, which is the same streamed and whole; the agent must answer twice alike."""
    streamed = (await ask(agent, stream=True, **fields)).without_ids()
    whole = (await ask(agent, stream=False, **fields)).without_ids()
    assert streamed == whole
    assert list(streamed.kinds) == list(whole.kinds)
    return whole
