"""Parses the messages of a chat request."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from node.dialects.fields.custom_input import arguments_of
from node.dialects.fields.field_table import FIRST_FAULT, Lenient, arguments_text, unsupported
from node.dialects.fields.media import media_part, text_only
from node.errors import BadRequest
from node.protocol.media import line_of
from node.request import Content, MediaPart, Message, Role, TextPart, ToolCall

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Role names that a request may use, and the role that each stands for."""

_MAY_SAY_NOTHING = ("assistant", "tool", "function")
"""Roles whose messages may lack `content`; in the others it may be null."""
_SPOKEN_BY: Mapping[Role, tuple[str, ...]] = {
    "assistant": (
        "tool_calls",
        "function_call",
        "reasoning_content",
        "reasoning",
        "refusal",
        "audio",
    ),
    "tool": ("tool_call_id",),
}
"""Fields that are only allowed in messages of one role."""


class CalledFunction(Lenient):
    name: Annotated[str, Field(min_length=1)]
    arguments: object = None


class CalledCustom(Lenient):
    name: Annotated[str, Field(min_length=1)]
    input: str = ""


class CallBody(Lenient):
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class MessageBody(Lenient):
    role: str
    content: object = None
    name: str | None = None
    tool_calls: Annotated[list[CallBody], FIRST_FAULT] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: object = None


def read_messages(bodies: Sequence[MessageBody]) -> tuple[Message, ...]:
    """Returns the messages in order. Raises `BadRequest` or `Unsupported` with the path of the
    field at fault."""
    messages: list[Message] = []
    for at, body in enumerate(bodies):
        messages.append(_message(body, at, messages))
    return tuple(text_only(messages))


def _message(body: MessageBody, at: int, earlier: Sequence[Message]) -> Message:
    path = f"messages[{at}]"
    role = ROLES.get(body.role)
    if role is None:
        raise BadRequest(f"{path}.role must be one of {', '.join(ROLES)}.", param=f"{path}.role")
    _refuse_misplaced(body, role, path)
    content = _content(body, f"{path}.content")
    name = body.name or ""
    if role == "assistant":
        return Message(
            role,
            _with_more(content, body),
            reasoning=body.reasoning_content or body.reasoning or "",
            tool_calls=_calls(body, at, path),
            name=name,
            source=at,
        )
    if role == "tool":
        call_id = _call_id(body, path, earlier)
        return Message(role, content, tool_call_id=call_id, name=name, source=at)
    return Message(role, content, name=name, source=at)


def _refuse_misplaced(body: MessageBody, role: Role, path: str) -> None:
    for speaker, fields in _SPOKEN_BY.items():
        for field in fields:
            if speaker != role and getattr(body, field):
                raise BadRequest(
                    f"{path}.{field} is only allowed in a message of role {speaker}.",
                    param=f"{path}.{field}",
                )


def _with_more(content: Content, body: MessageBody) -> Content:
    """Appends the parts of an assistant's message that lie outside `content`: its refusal, and
    audio, of which clients send back only the id."""
    more = [body.refusal] if body.refusal else []
    if body.audio:
        more.append(line_of("audio"))
    if not more:
        return content
    content_parts = (TextPart(content),) if isinstance(content, str) else content
    parts = (*(content_parts if content else ()), *map(TextPart, more))
    return more[0] if len(parts) == 1 else parts


# --- calls and their results -----------------------------------------------------------------


def _calls(body: MessageBody, at: int, path: str) -> tuple[ToolCall, ...]:
    calls = [
        read_call(call, f"call_{at}_{i}", f"{path}.tool_calls[{i}]")
        for i, call in enumerate(body.tool_calls or ())
    ]
    if body.function_call is not None:
        # The older form has no ids.
        function = body.function_call
        calls.append(ToolCall(f"call_{at}", function.name, arguments_text(function.arguments)))
    return tuple(calls)


def read_call(call: CallBody, own_id: str, path: str) -> ToolCall:
    """Parses a call. `own_id` is used if the call has no id; it depends on the message's position
    only, so that later requests give the call the same one."""
    if call.type not in (None, "function", "custom"):
        raise unsupported(f"calls of type {call.type}", f"{path}.type")
    if call.type == "custom":
        if call.custom is None:
            raise BadRequest(f"{path}.custom is missing.", param=f"{path}.custom")
        return ToolCall(call.id or own_id, call.custom.name, arguments_of(call.custom.input))
    if call.function is None:
        raise BadRequest(f"{path}.function is missing.", param=f"{path}.function")
    return ToolCall(call.id or own_id, call.function.name, arguments_text(call.function.arguments))


def _call_id(body: MessageBody, path: str, earlier: Sequence[Message]) -> str:
    """Returns the id of the call whose result a tool message is; empty for a message of role
    `function` that follows no call."""
    if body.role == "tool":
        call_id = body.tool_call_id or _open_call(earlier)
        if not call_id:
            raise BadRequest(f"{path}.tool_call_id is missing.", param=f"{path}.tool_call_id")
        return call_id
    if not body.name:
        raise BadRequest(f"{path}.name is missing.", param=f"{path}.name")
    calls = (call for message in reversed(earlier) for call in reversed(message.tool_calls))
    return next((call.call_id for call in calls if call.name == body.name), "")


def _open_call(earlier: Sequence[Message]) -> str:
    """Returns the id of the first call without a result; empty if there is none."""
    with_result = set()
    for message in reversed(earlier):
        if message.role != "tool":
            waiting = (call.call_id for call in message.tool_calls)
            return next((each for each in waiting if each not in with_result), "")
        with_result.add(message.tool_call_id)
    return ""


# --- contents --------------------------------------------------------------------------------


def _content(body: MessageBody, path: str) -> Content:
    content = body.content
    if isinstance(content, str):
        return content
    is_given = "content" in body.model_fields_set or body.role in _MAY_SAY_NOTHING
    if is_given and (content is None or content == []):
        return ""
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be a string or a list of parts.", param=path)
    parts = tuple(
        _part(part, f"{path}[{i}]", body.role == "assistant") for i, part in enumerate(content)
    )
    # A single text becomes a string, which every chat template accepts.
    return parts[0].text if len(parts) == 1 and isinstance(parts[0], TextPart) else parts


def _part(part: Any, path: str, may_refuse: bool) -> TextPart | MediaPart:  # noqa: FBT001
    if not isinstance(part, Mapping):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = part.get("type")
    field = "refusal" if may_refuse and kind == "refusal" else "text"
    if kind == field:
        text = part.get(field)
        if not isinstance(text, str):
            raise BadRequest(f"{path}.{field} must be a string.", param=f"{path}.{field}")
        return TextPart(text)
    media = media_part(part, path)
    if media is None:
        raise BadRequest(f"{path}.type must be text.", param=f"{path}.type")
    return media
