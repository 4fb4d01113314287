"""Parses the messages of Ollama's `/api/chat`."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from node.dialects.chat.messages import CallBody, read_call
from node.dialects.fields.field_table import FIRST_FAULT, Lenient
from node.dialects.fields.media import text_only
from node.errors import BadRequest
from node.protocol.media import line_of
from node.request import Content, MediaPart, Message, Role, TextPart, ToolCall

Images = Annotated[list[str], FIRST_FAULT]
"""Pictures in base64."""
ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class OllamaMessage(Lenient):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: Annotated[list[CallBody], FIRST_FAULT] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


MessageList = Annotated[list[OllamaMessage], FIRST_FAULT, Field(max_length=100_000)]


def read_messages(bodies: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    """Returns the messages in order. Raises `BadRequest` or `Unsupported` with the path of the
    field at fault."""
    messages: list[Message] = []
    for at, body in enumerate(bodies):
        messages.append(_message(body, at, messages))
    return tuple(text_only(messages))


def with_images(text: str, images: Sequence[str] | None, path: str) -> Content:
    """Returns the content of a message with pictures, which come before its text."""
    if not images:
        return text
    parts = tuple(
        MediaPart("image", line_of("image"), f"{path}[{at}]") for at in range(len(images))
    )
    return (*parts, TextPart(text)) if text else parts


def _message(body: OllamaMessage, at: int, earlier: Sequence[Message]) -> Message:
    path = f"messages[{at}]"
    role = ROLES.get(body.role)
    if role is None:
        raise BadRequest(f"{path}.role must be one of {', '.join(ROLES)}.", param=f"{path}.role")
    content = with_images(body.content or "", body.images, f"{path}.images")
    if role == "assistant":
        calls = tuple(
            read_call(call, f"call_{at}_{i}", f"{path}.tool_calls[{i}]")
            for i, call in enumerate(body.tool_calls or ())
        )
        return Message(role, content, reasoning=body.thinking or "", tool_calls=calls, source=at)
    if role == "tool":
        call = _called(body, earlier)
        # The name of a call need not be repeated; a result without its call has nothing else.
        name = "" if call else body.tool_name or ""
        return Message(role, content, tool_call_id=call, name=name, source=at)
    return Message(role, content, source=at)


def _called(body: OllamaMessage, earlier: Sequence[Message]) -> str:
    """Returns the id of the call whose result a tool message is: by its id, or else the first open
    one of that name, or of any name; empty if there is none. Ollama's clients send no ids."""
    if body.tool_call_id:
        return body.tool_call_id
    waiting = _open_calls(earlier)
    named = (call for call in waiting if call.name == body.tool_name)
    found = next(named, None) or (waiting[0] if waiting and not body.tool_name else None)
    return found.call_id if found else ""


def _open_calls(earlier: Sequence[Message]) -> list[ToolCall]:
    """Returns the calls of the last message that is no result, as far as they have none."""
    with_result = set()
    for message in reversed(earlier):
        if message.role != "tool":
            return [call for call in message.tool_calls if call.call_id not in with_result]
        with_result.add(message.tool_call_id)
    return []
