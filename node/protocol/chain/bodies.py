"""Canonical forms of the items of each dialect's bodies, and of the fields that a prompt shows
before them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain import ollama_bodies
from node.protocol.chain.canonical import (
    END,
    GAP,
    ROLES,
    Fields,
    OutputCall,
    OutputText,
    Parts,
    Unreadable,
    message_form,
    shows_tools,
    system_form,
    text_form,
    tool_fields,
    tools_form,
    utf8,
)
from node.protocol.chain.dialect import Dialect, Unit, is_list, objects
from node.protocol.chain.response_bodies import response_forms, response_items, response_preamble
from node.protocol.chain.tools import (
    HOSTED_BLOCKS,
    client_run,
    is_hosted,
)
from node.protocol.chain.volatile import without_volatile_lines
from node.protocol.media import line_of
from node.protocol.paths import (
    PATH_CHAT,
    PATH_COMPLETIONS,
    PATH_MESSAGES,
    PATH_OLLAMA_CHAT,
    PATH_OLLAMA_GENERATE,
    PATH_RESPONSES,
)


class ResponseOutput(NamedTuple):
    """The content and calls of a response in their order, without its reasoning."""

    path: str
    """Path of the endpoint that gave the response."""
    parts: Sequence[OutputText | OutputCall]


def output_items(output: ResponseOutput) -> list[bytes]:
    """The items by which the client repeats the response in its next request."""
    if output.path in (PATH_COMPLETIONS, PATH_OLLAMA_GENERATE):
        return []
    if output.path == PATH_RESPONSES:
        return [
            message_form(b"a", utf8(each.text))
            if isinstance(each, OutputText)
            else message_form(b"a", b"", calls=[each])
            for each in output.parts
            if not isinstance(each, OutputText) or each.text
        ]
    text = "".join(each.text for each in output.parts if isinstance(each, OutputText))
    calls = [each for each in output.parts if isinstance(each, OutputCall)]
    return [message_form(b"a", utf8(text), calls=calls)]


# --- chat ------------------------------------------------------------------------------------


class _ChatFunction(msgspec.Struct, gc=False):
    name: str
    arguments: Any = None


class _ChatCustom(msgspec.Struct, gc=False):
    name: str
    input: str = ""


class _ChatCall(msgspec.Struct, gc=False):
    function: _ChatFunction | None = None
    custom: _ChatCustom | None = None


class _ChatMessage(msgspec.Struct, gc=False):
    role: str
    content: Parts = None
    name: str | None = None
    tool_calls: list[_ChatCall] | None = None
    function_call: _ChatFunction | None = None
    refusal: str | None = None
    audio: Any = None


_chat_messages = msgspec.json.Decoder(list[_ChatMessage]).decode


def _chat_forms(text: bytes, _before: int) -> Iterable[bytes]:
    return map(_chat_form, _chat_messages(text))


def _chat_form(message: _ChatMessage) -> bytes:
    role = ROLES.get(message.role)
    if role is None:
        raise Unreadable
    if role in b"sd":
        return system_form(role, message.content, GAP)
    # A prompt shows an assistant's parts without a separator, as the model generated them.
    text = text_form(message.content, b"" if role == b"a" else GAP)
    if role != b"a":
        return message_form(role, text, name=message.name)
    if message.refusal:
        text += utf8(message.refusal)
    if message.audio:
        text += utf8(line_of("audio"))
    calls = [_chat_call(call) for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(OutputCall(message.function_call.name, message.function_call.arguments))
    return message_form(role, text, name=message.name, calls=calls)


def _chat_preamble(fields: Fields) -> list[Unit]:
    units = []
    if "tools" in fields and shows_tools(fields):
        units.append(Unit(fields["tools"], _tools_of_chat))
    if "functions" in fields and shows_tools(fields, "function_call"):
        units.append(Unit(fields["functions"], _functions_of_chat))
    return units


def _chat_call(call: _ChatCall) -> OutputCall:
    if call.custom is not None:
        return OutputCall(call.custom.name, {"input": call.custom.input})
    if call.function is None:
        raise Unreadable
    return OutputCall(call.function.name, call.function.arguments)


def _tools_of_chat(raw: msgspec.Raw) -> bytes:
    return tools_form(_chat_tool(tool) for tool in objects(raw) or () if not is_hosted(tool))


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with an object in its field `custom` is a custom tool; any other needs `function`."""
    custom = tool.get("custom")
    if tool.get("type") == "custom" and isinstance(custom, dict):
        return {"custom": tool_fields(custom, format="format")}
    function = tool.get("function")
    if not isinstance(function, dict):
        raise Unreadable
    return tool_fields(function, parameters="parameters")


def _functions_of_chat(raw: msgspec.Raw) -> bytes:
    return tools_form(
        tool_fields(function, parameters="parameters") for function in objects(raw) or ()
    )


def _messages(fields: Fields) -> msgspec.Raw:
    messages = fields.get("messages")
    if messages is None or not is_list(messages):
        raise Unreadable
    return messages


# --- completions -----------------------------------------------------------------------------

_prompts_of = msgspec.json.Decoder(list[str | list[int | str | list[int]]]).decode


def _prompts(fields: Fields) -> msgspec.Raw:
    prompt = fields.get("prompt")
    if prompt is None:
        raise Unreadable
    return prompt


def _completion_forms(text: bytes, _before: int) -> Iterable[bytes]:
    return map(_completion_form, _prompts_of(text))


def _completion_form(prompt: Any) -> bytes:
    """The form of a text, or of token ids in four bytes each."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return b"p" + utf8(prompt) + END
    try:
        return b"i" + b"".join(number.to_bytes(4, "little") for number in prompt)
    except (AttributeError, OverflowError):
        raise Unreadable from None


# --- Anthropic -------------------------------------------------------------------------------


class _Turn(msgspec.Struct, gc=False):
    role: str
    content: Parts = None
    clear_at: str | None = None


_UNSEEN = HOSTED_BLOCKS | {"tool_use", "thinking", "redacted_thinking"}
"""Types of an assistant's blocks whose text a prompt does not show as the assistant's."""
_turns = msgspec.json.Decoder(list[_Turn]).decode
_parts = msgspec.json.Decoder(Parts).decode


def _anthropic_forms(text: bytes, _before: int) -> Iterable[bytes]:
    return map(_anthropic_form, _turns(text))


def _anthropic_form(turn: _Turn) -> bytes:
    content = turn.content
    if turn.role == "system":
        return _system_prompt(content, b"K" + END if turn.clear_at else b"")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if turn.role == "user":
        return _user(blocks)
    if turn.role != "assistant":
        raise Unreadable
    calls = [
        OutputCall(block["name"], block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use" and isinstance(block.get("name"), str)
    ]
    kept = [block for block in blocks if block.get("type") not in _UNSEEN]
    return message_form(b"a", text_form(kept, b""), calls=calls)


def _user(blocks: Sequence[Mapping[str, Any]]) -> bytes:
    """Tool results come before the text, in the order in which the prompt shows them."""
    pieces = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    rest = [dict(block) for block in blocks if block.get("type") != "tool_result"]
    text = text_form(rest, b"\n")
    return b"".join([*pieces, message_form(b"u", text)] if text or not pieces else pieces)


def _result(block: Mapping[str, Any]) -> bytes:
    content = block.get("content")
    if not isinstance(content, str | list | None):
        raise Unreadable
    made = message_form(b"t", text_form(content, b"\n"))
    return made + b"E" if block.get("is_error") else made


def _anthropic_preamble(fields: Fields) -> list[Unit]:
    units = []
    if "tools" in fields and shows_tools(fields):
        units.append(Unit(fields["tools"], _tools_of_anthropic))
    if "system" in fields:
        units.append(Unit(fields["system"], _system_of_anthropic))
    return units


def _system_prompt(content: Parts, more: bytes = b"") -> bytes:
    text = text_form(content, b"\n", without_volatile_lines)
    return message_form(b"s", text) + more if text else b""


def _system_of_anthropic(raw: msgspec.Raw) -> bytes:
    return _system_prompt(_parts(raw))


def _tools_of_anthropic(raw: msgspec.Raw) -> bytes:
    return tools_form(_anthropic_tool(tool) for tool in objects(raw) or () if not is_hosted(tool))


def _anthropic_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if client_run(tool.get("type")) is not None:
        return {name: value for name, value in tool.items() if name != "cache_control"}
    return tool_fields(tool, parameters="input_schema", input_examples="input_examples")


DIALECTS: Mapping[str, Dialect] = {
    PATH_CHAT: Dialect(_chat_preamble, _messages, _chat_forms),
    PATH_COMPLETIONS: Dialect(lambda _fields: [], _prompts, _completion_forms, has_list=False),
    PATH_MESSAGES: Dialect(_anthropic_preamble, _messages, _anthropic_forms),
    PATH_OLLAMA_CHAT: ollama_bodies.CHAT,
    PATH_OLLAMA_GENERATE: ollama_bodies.GENERATE,
    PATH_RESPONSES: Dialect(response_preamble, response_items, response_forms),
}
"""Dialects by path. Paths of endpoints that prefill nothing are missing."""
