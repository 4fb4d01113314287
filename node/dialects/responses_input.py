"""The items of `/v1/responses`: from a client's input, or a stored turn, to messages.

An answer is several items here (reasoning, text, calls) and one message to a chat template, so
items that follow one another are put together as they would have been said.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from node.dialects.body import arguments_text, unsupported
from node.dialects.media import media_part
from node.errors import BadRequest, UnknownItem
from node.protocol.canonical import model_name
from node.protocol.ids import response_of
from node.request import BEFORE_ITEMS, Content, MediaPart, Message, Role, TextPart, ToolCall

Item: TypeAlias = dict[str, Any]

SEAL = "mlx-fleet.1."
"""What our `encrypted_content` begins with."""

_ROLES: tuple[Role, ...] = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_OTHER_ITEMS = (
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)


_KEPT: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "phase"),
    "function_call": ("call_id", "namespace", "name"),
    "function_call_output": ("call_id", "namespace", "name", "output"),
    "reasoning": ("encrypted_content",),
}
"""Of each kind of item, the fields that are texts."""


@dataclass(frozen=True, slots=True)
class History:
    """What a body refers to instead of repeating it."""

    items: Sequence[Item] = ()
    """Input and output of the responses before, the oldest first."""
    found: Mapping[str, Item] = field(default_factory=dict)
    """Items by id, of those that the input refers to."""


def input_items(value: object) -> list[Item]:
    """The items of the field `input`, a text being one message. Raises `BadRequest`."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadRequest("input must be a string or a list of items.", param="input")
    for at, item in enumerate(value):
        if not isinstance(item, dict):
            raise BadRequest(f"input[{at}] must be an object.", param=f"input[{at}]")
    return value


def references(items: Sequence[Item]) -> tuple[str, ...]:
    """The ids of the items that the input refers to. Raises `BadRequest`."""
    return tuple(
        _string(item, "id", f"input[{at}]") for at, item in enumerate(items) if _is_reference(item)
    )


def resolved(items: Sequence[Item], history: History) -> list[Item]:
    """The items with what they refer to in place of references. Raises `UnknownItem`."""
    if not any(_is_reference(item) for item in items):
        return list(items)
    known = {str(item.get("id")): item for item in history.items} | dict(history.found)
    whole = []
    for at, item in enumerate(items):
        if _is_reference(item):
            wanted = _string(item, "id", f"input[{at}]")
            if wanted not in known:
                raise UnknownItem(
                    f"There is no item {wanted!r} here: its response was not stored, was deleted, "
                    "gave way to newer ones, or is on another node. Send the item whole.",
                    param=f"input[{at}].id",
                )
            item = known[wanted]
        whole.append(item)
    return whole


def messages_of(
    items: Sequence[Item], path: str = "input", *, earlier: int = 0
) -> tuple[Message, ...]:
    """The messages that the items stand for, media included; references stand for none. `path`
    names the items in errors; the first `earlier` of them are none of the body's. Raises
    `BadRequest`, or `Unsupported` for items that no message stands for."""
    turns = _Turns()
    for at, item in enumerate(items):
        if not _is_reference(item):
            turns.add(item, f"{path}[{at - earlier}]", max(at - earlier, BEFORE_ITEMS))
    turns.end_answer()
    return tuple(turns.messages)


def sealed(text: str) -> str:
    """Reasoning as `encrypted_content`: opaque to clients, which have the text beside it, and
    understood when they give back nothing else."""
    return SEAL + base64.b64encode(text.encode()).decode()


def stored_item(item: Item, new_id: str) -> Item:
    """An input item as it is kept and listed: what has a meaning here, an id, `new_id` if it has
    none, and the fields that a client need not give but gets."""
    kind = str(_kind(item))
    given = item.get("id")
    kept: Item = {"id": given if isinstance(given, str) and given else new_id, "type": kind}
    kept |= {name: item[name] for name in _KEPT[kind] if isinstance(item.get(name), str)}
    if kind == "reasoning":
        kept["summary"] = _stored_parts(item.get("summary"), "summary_text")
        kept["content"] = _stored_parts(item.get("content"), "reasoning_text")
        return kept
    kept["status"] = "completed"
    if kind == "message":
        is_answer = kept["role"] == "assistant"
        kept["content"] = _stored_parts(
            item.get("content"), "output_text" if is_answer else "input_text"
        )
    elif kind == "function_call":
        kept["arguments"] = arguments_text(item.get("arguments"))
    elif kind == "function_call_output" and "output" not in kept:
        kept["output"] = _stored_parts(item.get("output"), "input_text")
    return kept


def _stored_parts(content: str | Sequence[Item] | None, kind: str) -> list[Item]:
    """The parts of what `_parts` has read; of media, what prompts show of it."""
    more: Item = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    given = [{"type": kind, "text": content}] if isinstance(content, str) else content or ()
    return [
        {"type": "refusal", "refusal": part["refusal"]}
        if part["type"] == "refusal"
        else {"type": kind, "text": _part(part, "part").text, **more}
        for part in given
    ]


@dataclass(slots=True)
class _Answer:
    """The items of one answer so far, in whatever order they came."""

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    source: str | None = None
    """As `_source` tells it of its items."""
    ends_with_text: bool = False
    item: int = BEFORE_ITEMS
    """Index of its last one in the body."""

    @property
    def message(self) -> Message:
        # What it said is put together as the model said it, without anything in between.
        reasoning = "\n".join(self.reasoning)
        text = "".join(self.texts)
        return Message("assistant", text, reasoning, tuple(self.calls), source=self.item)


class _Turns:
    """Messages, and the answer that is being put together."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._answer = _Answer()
        self._at = BEFORE_ITEMS
        self._names: dict[str, str] = {}
        """Of functions, by the id of the call."""

    def add(self, item: Item, path: str, at: int) -> None:
        """`at`: the item's index in the body, or `BEFORE_ITEMS`."""
        self._at = at
        kind = _kind(item)
        if kind == "message":
            self._message(item, path)
        elif kind == "function_call":
            self._call(item, path)
        elif kind == "function_call_output":
            self._output(item, path)
        elif kind == "reasoning":
            self._add_reasoning(item, path)
        elif kind in _OTHER_ITEMS:
            raise unsupported(f"items of type {kind}", f"{path}.type")
        else:
            raise BadRequest(f"{path}.type is not the type of an item.", param=f"{path}.type")

    def end_answer(self) -> None:
        """What comes next is not part of the answer."""
        answer = self._answer
        if answer.reasoning or answer.texts or answer.calls:
            self.messages.append(answer.message)
        self._answer = _Answer()

    def _go_on(self, item: Item) -> _Answer:
        """The answer that the item is part of: the open one, unless that is of another response."""
        source = _source(item)
        if source is not None:
            if self._answer.source not in (None, source):
                self.end_answer()
            self._answer.source = source
        self._answer.item = self._at
        return self._answer

    def _message(self, item: Item, path: str) -> None:
        role = next((role for role in _ROLES if role == item.get("role")), None)
        if role is None:
            raise BadRequest(
                f"{path}.role must be one of {', '.join(_ROLES)}.", param=f"{path}.role"
            )
        if role == "assistant":
            self._answer_text(item, path)
            return
        self.end_answer()
        content = _content(_parts(item.get("content"), f"{path}.content"))
        self.messages.append(Message(role, content, source=self._at))

    def _answer_text(self, item: Item, path: str) -> None:
        content = item.get("content")
        text = "" if content is None else "".join(_texts(content, f"{path}.content"))
        if not text:
            return
        answer = self._go_on(item)
        if answer.ends_with_text:
            # An answer's text is one item where nothing comes between.
            self.end_answer()
            answer = self._go_on(item)
        answer.texts.append(text)
        answer.ends_with_text = True

    def _add_reasoning(self, item: Item, path: str) -> None:
        text = reasoning_text(item, path)
        if text:
            answer = self._go_on(item)
            answer.reasoning.append(text)
            answer.ends_with_text = False

    def _call(self, item: Item, path: str) -> None:
        call_id = _string(item, "call_id", path)
        name = model_name(_string(item, "name", path), item.get("namespace"))
        answer = self._go_on(item)
        answer.calls.append(ToolCall(call_id, name, arguments_text(item.get("arguments"))))
        answer.ends_with_text = False
        self._names[call_id] = name

    def _output(self, item: Item, path: str) -> None:
        self.end_answer()
        call_id = _string(item, "call_id", path)
        output = item.get("output")
        content = _content([] if output is None else _parts(output, f"{path}.output"))
        name = self._names.get(call_id, "")
        if not name and isinstance(item.get("name"), str):
            name = model_name(item["name"], item.get("namespace"))
        self.messages.append(
            Message("tool", content, tool_call_id=call_id, name=name, source=self._at)
        )


def _kind(item: Item) -> object:
    """The item's type; messages may come without."""
    return item.get("type") or ("message" if "role" in item else None)


def _source(item: Item) -> str | None:
    """What the item came with, as its id tells: the input or the output of which response. None
    where the id is not ours."""
    item_id = item.get("id")
    response_id = response_of(item_id) if isinstance(item_id, str) else None
    if response_id is None:
        return None
    number = str(item_id).rpartition("-")[2]
    return response_id + " input" if number.startswith("i") else response_id


def _is_reference(item: Item) -> bool:
    kind = _kind(item)
    return kind == "item_reference" or (kind is None and "id" in item)


def reasoning_text(item: Item, path: str) -> str:
    """The text of a reasoning item, from the first of its content, what is sealed, and its summary
    that holds any. Raises `BadRequest`."""
    sealed_text = item.get("encrypted_content")
    content, summary = (
        [] if item.get(name) is None else _texts(item[name], f"{path}.{name}")
        for name in ("content", "summary")
    )
    if any(content):
        return "".join(content)
    if isinstance(sealed_text, str) and sealed_text.startswith(SEAL):
        try:
            return base64.b64decode(sealed_text[len(SEAL) :], validate=True).decode()
        except (binascii.Error, ValueError):
            path = f"{path}.encrypted_content"
            raise BadRequest(f"{path} is not as it was given out.", param=path) from None
    # What another server has encrypted nobody else can read; its summary is what is left of it.
    return "\n\n".join(summary)


def _texts(content: object, path: str) -> list[str]:
    return [part.text for part in _parts(content, path)]


def _parts(content: object, path: str) -> list[TextPart | MediaPart]:
    if isinstance(content, str):
        return [TextPart(content)]
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be a string or a list of parts.", param=path)
    return [_part(part, f"{path}[{at}]") for at, part in enumerate(content)]


def _part(part: object, path: str) -> TextPart | MediaPart:
    if not isinstance(part, dict):
        raise BadRequest(f"{path} must be an object.", param=path)
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return TextPart(_string(part, "text", path, may_be_empty=True))
    if kind == "refusal":
        return TextPart(_string(part, "refusal", path, may_be_empty=True))
    media = media_part(part, path)
    if media is None:
        raise BadRequest(f"{path}.type is not the type of a part.", param=f"{path}.type")
    return media


def _content(parts: Sequence[TextPart | MediaPart]) -> Content:
    """One text is the same as a string, which every template takes."""
    if not parts:
        return ""
    first = parts[0]
    return first.text if len(parts) == 1 and isinstance(first, TextPart) else tuple(parts)


def _string(item: Mapping[str, Any], name: str, path: str, *, may_be_empty: bool = False) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadRequest(f"{path}.{name} must be a string.", param=f"{path}.{name}")
    return value
