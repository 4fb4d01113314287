"""Converts the messages of an Anthropic body from content blocks to messages that are independent
of the dialect."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from node.dialects.anthropic.signature import carried_thought
from node.dialects.fields.field_table import Lenient, arguments_text, refuse_invalid, unsupported
from node.dialects.fields.media import media_part, text_only
from node.errors import BadRequest
from node.protocol.chain.tools import HOSTED_BLOCKS
from node.protocol.chain.volatile import without_volatile_lines
from node.protocol.media import document_text, is_text_document, search_result_text
from node.request import NO_ITEM, MediaPart, Message, TextPart, ToolCall

Block = dict[str, Any]

_UNSEEN = HOSTED_BLOCKS | {"redacted_thinking"}
"""Types of an assistant's blocks that are not part of the prompt."""
_ERROR = "Error"
"""Prefix of the text of a tool result that is an error."""


class MessageFields(Lenient):
    """One element of `messages`."""

    role: str
    content: object = None
    clear_at: str | None = None
    """Allowed in a system message only."""
    output_config: dict[str, object] | None = None
    """Allowed in a system message only, where any value is refused."""


class _TextBlock(Lenient):
    text: str


class _ThinkingBlock(Lenient):
    thinking: str
    signature: str | None = None


class _CompactionBlock(Lenient):
    """A host's summary of earlier turns."""

    content: str | None = None


class _ToolReferenceBlock(Lenient):
    tool_name: str


class _ToolUseBlock(Lenient):
    id: str
    name: str
    input: object = None


class _ToolResultBlock(Lenient):
    tool_use_id: str
    content: object = None
    is_error: bool | None = None


class _Source(Lenient):
    type: str
    data: object = None


class _Citations(Lenient):
    enabled: bool | None = None


class _DocumentBlock(Lenient):
    source: _Source
    title: str | None = None
    context: str | None = None
    citations: _Citations | None = None


_B = TypeVar("_B", bound=Lenient)


def read_system(content: object, path: str = "system") -> str:
    """Returns the text of a system prompt without its volatile lines. Raises `BadRequest` or
    `Unsupported` with the path of the field at fault."""
    texts: list[str] = []
    for kind, block, at in _blocks(content, path):
        if kind != "text":
            raise unsupported(f"{kind} blocks in a system prompt", f"{at}.type")
        texts.append(without_volatile_lines(_read(_TextBlock, block, at).text))
    return _joined(texts)


def read_conversation(given: Sequence[MessageFields]) -> list[Message]:
    """Returns the messages in order. A user turn with tool results becomes one message for each
    result, followed by one for its text. Raises `BadRequest` or `Unsupported` with the path of the
    field at fault."""
    last_user = max((i for i, fields in enumerate(given) if fields.role == "user"), default=-1)
    messages: list[Message] = []
    is_lasting = True
    for number, fields in enumerate(given):
        read = _messages(fields, f"messages[{number}]")
        if fields.role == "system" and fields.clear_at == "next_user_message":
            if number <= last_user:
                continue
            # Once this message is cleared, all that follows moves to another position of the
            # prompt.
            is_lasting = False
        messages += (replace(each, source=number if is_lasting else NO_ITEM) for each in read)
    return [_flat(each) for each in text_only(messages)]


def _messages(fields: MessageFields, path: str) -> list[Message]:
    if fields.role == "user":
        return _user(fields.content, f"{path}.content")
    if fields.role == "assistant":
        return [_assistant(fields.content, f"{path}.content")]
    if fields.role == "system":
        text = _system(fields, path)
        return [Message("system", text)] if text else []
    raise BadRequest(f"{path}.role must be user, assistant or system.", param=f"{path}.role")


def _system(fields: MessageFields, path: str) -> str:
    if fields.clear_at not in (None, "never", "next_user_message"):
        raise BadRequest(
            f"{path}.clear_at must be next_user_message or never.", param=f"{path}.clear_at"
        )
    for name, value in (fields.output_config or {}).items():
        if value is not None:
            raise unsupported(
                "an output_config in the conversation", f"{path}.output_config.{name}"
            )
    return read_system(fields.content, f"{path}.content")


def _user(content: object, path: str) -> list[Message]:
    results: list[Message] = []
    parts: list[TextPart | MediaPart] = []
    for kind, block, at in _blocks(content, path):
        if kind == "tool_result":
            results.append(_result(_read(_ToolResultBlock, block, at), at))
        else:
            parts.append(_plain(kind, block, at))
    filled = tuple(part for part in parts if part.text)
    return [*results, Message("user", filled)] if filled or not results else results


def _result(result: _ToolResultBlock, path: str) -> Message:
    text = ""
    if result.content is not None:
        blocks = _blocks(result.content, f"{path}.content")
        text = _joined(_plain(kind, block, at).text for kind, block, at in blocks)
    if result.is_error and not text.lstrip().lower().startswith(_ERROR.lower()):
        text = f"{_ERROR}: {text}" if text else _ERROR
    return Message("tool", text, tool_call_id=result.tool_use_id)


def _assistant(content: object, path: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for kind, block, at in _blocks(content, path):
        if kind == "text":
            texts.append(_read(_TextBlock, block, at).text)
        elif kind == "thinking":
            thoughts.append(_thought(_read(_ThinkingBlock, block, at), at))
        elif kind == "tool_use":
            call = _read(_ToolUseBlock, block, at)
            calls.append(ToolCall(call.id, call.name, arguments_text(call.input)))
        elif (media := media_part(block, at)) is not None:
            texts.append(media.text)
        elif kind == "compaction":
            texts.append(_read(_CompactionBlock, block, at).content or "")
        elif kind not in _UNSEEN:
            raise unsupported(f"{kind} blocks of an assistant", f"{at}.type")
    # The texts of a response are joined as the model generated them, without a separator.
    return Message("assistant", "".join(texts), _joined(thoughts), tuple(calls))


def _thought(block: _ThinkingBlock, path: str) -> str:
    if block.thinking:
        return block.thinking
    try:
        return carried_thought(block.signature or "")
    except ValueError:
        raise BadRequest(
            f"{path}.signature is damaged; send it back unchanged.",
            param=f"{path}.signature",
        ) from None


def _plain(kind: str, block: Block, path: str) -> TextPart | MediaPart:
    """Converts a block of a user's turn or of a tool result."""
    if kind == "text":
        return TextPart(_read(_TextBlock, block, path).text)
    if kind == "document":
        return _document(block, path)
    if kind == "search_result":
        return TextPart(search_result_text(block))
    if kind == "tool_reference":
        return TextPart(_read(_ToolReferenceBlock, block, path).tool_name)
    media = media_part(block, path)
    if media is None:
        raise unsupported(f"{kind} blocks here", f"{path}.type")
    return media


def _document(block: Block, path: str) -> TextPart | MediaPart:
    document = _read(_DocumentBlock, block, path)
    source = document.source
    if source.type == "text" and not isinstance(source.data, str):
        raise BadRequest(f"{path}.source.data must be a string.", param=f"{path}.source.data")
    if document.citations is not None and document.citations.enabled:
        raise unsupported("citations", f"{path}.citations")
    text = document_text(block)
    if is_text_document(block):
        return TextPart(text)
    return MediaPart("document", text, f"{path}.source.type")


def _flat(message: Message) -> Message:
    content = message.content
    if isinstance(content, str):
        return message
    return replace(message, content=_joined(part.text for part in content))


def _joined(texts: Iterable[str]) -> str:
    """Joins texts by line ends; empty ones leave no line."""
    return "\n".join(filter(None, texts))


def _blocks(content: object, path: str) -> Iterator[tuple[str, Block, str]]:
    """Yields (type, block, path) of each content block; a string is one text block."""
    if isinstance(content, str):
        yield "text", {"text": content}, path
        return
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be a string or a list of blocks.", param=path)
    for number, block in enumerate(content):
        at = f"{path}[{number}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise BadRequest(f"{at} must be an object with a type.", param=at)
        yield kind, block, at


def _read(kind: type[_B], block: Block, path: str) -> _B:
    try:
        return kind.model_validate(block)
    except ValidationError as exc:
        refuse_invalid(exc, path)
