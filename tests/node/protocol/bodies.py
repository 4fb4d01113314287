"""Conversations of no dialect, and how each dialect spells them."""

import json
import random
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from node.protocol.chain.prefix import (
    Chain,
    OutputCall,
    OutputText,
    PrefixHasher,
    ResponseOutput,
    read_fields,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
DIALECTS = (CHAT, MESSAGES, RESPONSES)

_WORDS = st.sampled_from(
    ["hello", " the weather", "\n\n", "ü🎉", '"quoted"', "</think>", "0123456789"]
)
TEXT = st.lists(_WORDS, min_size=1, max_size=4).map("".join) | st.integers(300, 900).map(
    lambda count: f"{count} " * count
)
_VALUES = st.integers(0, 9) | st.booleans() | TEXT
_ARGUMENTS = st.dictionaries(st.sampled_from(["path", "limit", "deep", "city"]), _VALUES)


@dataclass(frozen=True)
class Turn:
    """A user's text, or an answer: text and calls, whose results follow."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] | None = None
    """None: a user's."""
    reasoning: str = ""


_CALL = st.tuples(st.sampled_from(["read", "write"]), _ARGUMENTS)
USER = st.builds(Turn, TEXT)
ANSWER = st.builds(Turn, TEXT, st.lists(_CALL, max_size=2).map(tuple), st.just("") | TEXT)
CONVERSATION = st.lists(st.tuples(USER, ANSWER), min_size=1, max_size=3).map(
    lambda pairs: [turn for pair in pairs for turn in pair]
)
TOOLS = [
    ("read", {"type": "object", "properties": {"path": {"type": "string"}}}),
    ("write", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}),
]


@dataclass(frozen=True)
class Spelling:
    """The choices of a body between several spellings that mean the same."""

    ids: str = "call"
    parts: bool = False
    reasoning: bool = True
    cached: bool = False
    volatile: str = ""


def body(path: str, turns: list[Turn], system: str = "", **fields: Any) -> dict[str, Any]:
    """`fields` go over the body's own; `spelling` is a `Spelling`."""
    spelling: Spelling = fields.pop("spelling", Spelling())
    spell = {CHAT: _chat, MESSAGES: _anthropic, RESPONSES: _responses}[path]
    return {"model": "m", "stream": True, **spell(turns, system, spelling), **fields}


def chain_of(
    given: dict[str, Any] | bytes, path: str, prefix_hasher: PrefixHasher | None = None, **more: Any
) -> Chain:
    data = given if isinstance(given, bytes) else json.dumps(given).encode()
    made = (prefix_hasher or PrefixHasher()).chain(read_fields(data), path, "m", **more)
    assert made is not None
    assert len(made.hashes) == len(made.sizes) == (made.items[-1] if made.items else made.preamble)
    return made


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same JSON with its keys in another order."""
    if isinstance(value, list):
        return [shuffled(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    items = [(key, shuffled(each, chance)) for key, each in value.items()]
    chance.shuffle(items)
    return dict(items)


def answer_of(path: str, turn: Turn) -> ResponseOutput:
    calls = [OutputCall(name, json.dumps(arguments)) for name, arguments in turn.calls or ()]
    return ResponseOutput(path, [*([OutputText(turn.text)] if turn.text else []), *calls])


def _chat(turns: list[Turn], system: str, spelling: Spelling) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": _text(system, spelling, is_system=True)})
    for number, turn in enumerate(turns):
        if turn.calls is None:
            messages.append({"role": "user", "content": _text(turn.text, spelling)})
            continue
        message: dict[str, Any] = {"role": "assistant", "content": _text(turn.text, spelling)}
        if turn.reasoning and spelling.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": f"{spelling.ids}_{number}_{i}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for i, (name, arguments) in enumerate(turn.calls)
            ]
        messages.append(message)
        for i in range(len(turn.calls)):
            call_id = f"{spelling.ids}_{number}_{i}"
            messages.append(
                {"role": "tool", "tool_call_id": call_id, "content": f"result {i}{turn.text}"}
            )
    functions = [{"name": name, "parameters": schema} for name, schema in TOOLS]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"messages": messages, "tools": tools}


def _anthropic(turns: list[Turn], system: str, spelling: Spelling) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        if turn.calls is None:
            text = {"type": "text", "text": turn.text}
            content = (
                [*results, _marked(text, spelling)] if results or spelling.parts else turn.text
            )
            messages.append({"role": "user", "content": content})
            results = []
            continue
        blocks: list[dict[str, Any]] = []
        if turn.reasoning and spelling.reasoning:
            blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": "s"})
        half = len(turn.text) // 2 if spelling.parts else len(turn.text)
        blocks += [{"type": "text", "text": text} for text in (turn.text[:half], turn.text[half:])]
        for i, (name, arguments) in enumerate(turn.calls):
            call_id = f"{spelling.ids}_{number}_{i}"
            blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
            result = {"type": "tool_result", "tool_use_id": call_id, "content": f"result {i}"}
            results.append(_marked(result, spelling))
        messages.append({"role": "assistant", "content": blocks})
    tools = [{"name": name, "input_schema": schema} for name, schema in TOOLS]
    made: dict[str, Any] = {"messages": messages, "tools": tools, "max_tokens": 9}
    if system:
        made["system"] = _text(system, spelling, is_system=True)
    return made


def _responses(turns: list[Turn], system: str, spelling: Spelling) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        if turn.calls is None:
            items.append({"role": "user", "content": _text(turn.text, spelling, "input_text")})
            continue
        if turn.reasoning and spelling.reasoning:
            items.append({"type": "reasoning", "content": [], "summary": []})
        parts = [{"type": "output_text", "text": turn.text, "annotations": []}]
        if turn.text:
            items.append({"type": "message", "role": "assistant", "content": parts})
        named = [(f"{spelling.ids}_{number}_{i}", *call) for i, call in enumerate(turn.calls)]
        for call_id, name, arguments in named:
            text = json.dumps(arguments)
            call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}
            items.append(call)
        for call_id, name, _ in named:
            output = {"type": "function_call_output", "call_id": call_id, "output": f"did {name}"}
            items.append(output)
    tools = [{"type": "function", "name": name, "parameters": schema} for name, schema in TOOLS]
    made: dict[str, Any] = {"input": items, "tools": tools}
    if system:
        made["instructions"] = spelling.volatile + system
    return made


def _text(text: str, spelling: Spelling, kind: str = "text", *, is_system: bool = False) -> Any:
    if is_system:
        text = spelling.volatile + text
    return [_marked({"type": kind, "text": text}, spelling)] if spelling.parts else text


def _marked(block: dict[str, Any], spelling: Spelling) -> dict[str, Any]:
    return {**block, "cache_control": {"type": "ephemeral"}} if spelling.cached else block
