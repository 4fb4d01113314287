"""Images, audio and files in a conversation with a model that accepts text only.

A session must not fail because a tool returned an image, or because the user sent one some turns
ago: a line of text then says that something was left out. Only media in the user's current message
are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from node.errors import Unsupported
from node.protocol.media import line_of, noun_of
from node.request import Content, MediaPart, Message, TextPart

_SYSTEMS = ("system", "developer")
_CLIENTS_OWN = ("<system-reminder>", "<image name=", "</image>")
"""Prefixes of texts that clients themselves add to a user's message: Claude Code, and Codex around
each image."""


def media_part(part: Mapping[str, Any], path: str) -> MediaPart | None:
    """Returns the content part if it is media, else None."""
    noun = noun_of(part.get("type"))
    return None if noun is None else MediaPart(noun, line_of(noun), f"{path}.type")


def text_only(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with a line of text in place of each media part. Raises `Unsupported`
    for media in the user's current message."""
    current = _current_user_message(messages)
    if current is not None:
        _refuse_current_media(messages[current].content)
    return [_as_text(each) if _has_media(each.content) else each for each in messages]


def _current_user_message(messages: Sequence[Message]) -> int | None:
    """Returns the index of the user's message that this request answers; None if it answers tool
    results. After tool results, clients put a tool's images into a user message where results have
    no place for them."""
    spoken = [at for at, each in enumerate(messages) if each.role not in _SYSTEMS]
    if not spoken or messages[spoken[-1]].role != "user":
        return None
    before = next((at for at in reversed(spoken) if messages[at].role != "user"), None)
    if before is not None and messages[before].role == "tool":
        return None
    return spoken[-1]


def _has_media(content: Content) -> bool:
    return not isinstance(content, str) and any(isinstance(part, MediaPart) for part in content)


def _refuse_current_media(content: Content) -> None:
    """Raises `Unsupported` for media at the end of the message, or at its beginning with one text
    behind them. Media before other texts were refused in an earlier request: clients join all user
    messages that got no response into one, and send it again with each later request."""
    if isinstance(content, str):
        return
    behind = sum(map(_is_said, content))
    most_behind = 1
    for part in content:
        if _is_said(part):
            behind, most_behind = behind - 1, 0
        elif isinstance(part, TextPart):
            continue
        elif behind <= most_behind:
            raise Unsupported(
                f"This model takes text only; leave the {part.kind} out.", param=part.param
            )


def _is_said(part: TextPart | MediaPart) -> bool:
    return isinstance(part, TextPart) and not part.text.startswith(_CLIENTS_OWN)


def _as_text(message: Message) -> Message:
    assert not isinstance(message.content, str)
    parts = [TextPart(part.text) for part in message.content]
    # A single text becomes a string, which every chat template accepts.
    return replace(message, content=parts[0].text if len(parts) == 1 else tuple(parts))
