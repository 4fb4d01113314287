"""Renders tools, calls and results as text, for templates that do not render them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from node.request import Tool, ToolCall

EXAMPLE = '<tool_call>\n{"name": "wordtool", "arguments": {"wordkey": "wordvalue"}}\n</tool_call>'
"""A call of the function `wordtool` with the value `wordvalue` for `wordkey`."""

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def describe(tools: Sequence[Tool], example: str) -> str:
    """Returns the text of a system message that describes the tools. `example`: the form of a call,
    with the words of `EXAMPLE`."""
    lines = "\n".join(_json(tool.function) for tool in tools)
    shown = (example or EXAMPLE).replace("wordtool", "name_of_the_function")
    shown = shown.replace("wordkey", "name_of_a_parameter").replace("wordvalue", "its value")
    return (
        "You have functions that you can call. Each line here defines one of them as JSON, its "
        f"parameters as JSON Schema:\n<tools>\n{lines}\n</tools>\n\n"
        "Call a function whenever it helps you to answer. A call is spelled exactly like this, "
        f"with nothing behind it:\n{shown}\n\n"
        "For several calls at once write one after the other. What a function gave back comes in "
        "the next message. Never make a result up, and call only functions of the list. Without "
        "need of a function, answer as usual."
    )


def spell_calls(calls: Sequence[ToolCall], tool_format: str) -> str:
    """Returns the calls in the model's own form; `tool_format` is a name of `node.parsing`."""
    return _SPELLINGS.get(tool_format, _tagged)(calls)


def spell_result(text: str) -> str:
    """Returns the text of a user message that reports the result of a call."""
    return f"<tool_response>\n{text}\n</tool_response>"


def read_arguments(text: str) -> dict[str, Any]:
    """Returns the arguments as an object. Text that is not one becomes the object's only value."""
    try:
        return _decode_object(text.strip() or "{}")
    # A list or a number, an incomplete object, or JSON that other parsers read differently.
    except (msgspec.DecodeError, RecursionError):
        return {"arguments": text}


def arguments_text(text: str) -> str:
    """Returns the JSON text of `read_arguments`; the client's own text if that is an object."""
    arguments = read_arguments(text)
    return _json(arguments) if not text.strip() or arguments == {"arguments": text} else text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": read_arguments(call.arguments)}


def _tagged(calls: Sequence[ToolCall]) -> str:
    return "\n".join(f"<tool_call>\n{_json(_object(call))}\n</tool_call>" for call in calls)


def _granite(calls: Sequence[ToolCall]) -> str:
    return f"<|tool_call|>{_json([_object(call) for call in calls])}"


def _lfm2(calls: Sequence[ToolCall]) -> str:
    spelled = []
    for call in calls:
        named = read_arguments(call.arguments).items()
        spelled.append(f"{call.name}({', '.join(f'{name}={value!r}' for name, value in named)})")
    return f"<|tool_call_start|>[{', '.join(spelled)}]<|tool_call_end|>"


_SPELLINGS: dict[str, Callable[[Sequence[ToolCall]], str]] = {
    "granite": _granite,
    "lfm2": _lfm2,
}
