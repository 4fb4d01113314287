"""Pictures, sounds and files in a conversation with a model that takes text only.

A session must not end because a tool has shown a picture, or a user did some turns ago: the model
is told that something was left out. Only what the user shows now is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from node.errors import Unsupported
from node.protocol.media import line_of, noun_of
from node.request import Content, MediaPart, Message, TextPart

_SYSTEMS = ("system", "developer")
_CLIENTS_OWN = ("<system-reminder>", "<image name=", "</image>")
"""What clients themselves put into a user's message begins so: Claude Code, and Codex around each
picture."""


def media_part(part: Mapping[str, Any], path: str) -> MediaPart | None:
    """A content part that is media; None for another one."""
    noun = noun_of(part.get("type"))
    return None if noun is None else MediaPart(noun, line_of(noun), f"{path}.type")


def text_only(messages: Sequence[Message]) -> list[Message]:
    """The messages with a line of text in place of all media. Raises `Unsupported` for media in
    what the user says now."""
    asked = _asked(messages)
    if asked is not None:
        _refuse_shown_now(messages[asked].content)
    return [_as_text(each) if _has_media(each.content) else each for each in messages]


def _asked(messages: Sequence[Message]) -> int | None:
    """Index of the user's message that waits for its answer; None where results of tools do. Behind
    those, clients put the pictures of a tool into a user's message where results have no place for
    them."""
    spoken = [at for at, each in enumerate(messages) if each.role not in _SYSTEMS]
    if not spoken or messages[spoken[-1]].role != "user":
        return None
    before = next((at for at in reversed(spoken) if messages[at].role != "user"), None)
    if before is not None and messages[before].role == "tool":
        return None
    return spoken[-1]


def _has_media(content: Content) -> bool:
    return not isinstance(content, str) and any(isinstance(part, MediaPart) for part in content)


def _refuse_shown_now(content: Content) -> None:
    """Raises `Unsupported` for media at the end of what is said, or at its begin with one text
    behind them. Those before more were refused once: clients put all that a user says without an
    answer into one message, and send it again with all that follows."""
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
    # One text is the same as a string, which every template takes.
    return replace(message, content=parts[0].text if len(parts) == 1 else tuple(parts))
