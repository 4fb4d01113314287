"""Converts items of `/v1/responses`, of a client's input or a stored turn, to messages.

A response is several items here (reasoning, text, calls) but one message to a chat template, so
consecutive items of a response are joined into one message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node.dialects.responses.items import (
    Item,
    call_of,
    content_of,
    is_hosted,
    is_output,
    is_reference,
    kind_of,
    parts_in,
    reasoning_text,
    string_in,
    texts_in,
)
from node.errors import BadRequest, UnknownItem
from node.protocol.chain.canonical import model_name
from node.protocol.chain.tools import ADDING, NONE_FOUND, SEARCH_ITEMS, output_of, tools_text
from node.protocol.ids import response_of
from node.request import BEFORE_ITEMS, LeftOut, Message, Role, ToolCall

_ROLES: tuple[Role, ...] = ("user", "assistant", "system", "developer")


@dataclass(frozen=True, slots=True)
class History:
    """Stored items that a body refers to instead of repeating them."""

    items: Sequence[Item] = ()
    """Input and output of the previous responses, oldest first."""
    found: Mapping[str, Item] = field(default_factory=dict)
    """The items that the input refers to, by id."""


def input_items(value: object) -> list[Item]:
    """Returns the items of the field `input`; a string is one message. Raises `BadRequest`."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadRequest("input must be a string or a list of items.", param="input")
    for at, item in enumerate(value):
        if not isinstance(item, dict):
            raise BadRequest(f"input[{at}] must be an object.", param=f"input[{at}]")
    return value


def references(items: Sequence[Item]) -> tuple[str, ...]:
    """Returns the ids of the items that the input refers to. Raises `BadRequest`."""
    return tuple(
        string_in(item, "id", f"input[{at}]") for at, item in enumerate(items) if is_reference(item)
    )


def resolved(items: Sequence[Item], history: History) -> list[Item]:
    """Returns the items with each reference replaced by its item. Raises `UnknownItem`."""
    if not any(is_reference(item) for item in items):
        return list(items)
    known = {str(item.get("id")): item for item in history.items} | dict(history.found)
    whole = []
    for at, item in enumerate(items):
        if is_reference(item):
            wanted = string_in(item, "id", f"input[{at}]")
            if wanted not in known:
                raise UnknownItem(
                    f"There is no item {wanted!r} here: its response was not stored, was deleted, "
                    "was evicted for newer ones, or is on another node. Send the whole item.",
                    param=f"input[{at}].id",
                )
            item = known[wanted]
        whole.append(item)
    return whole


def messages_of(
    items: Sequence[Item], path: str = "input", *, earlier: int = 0
) -> tuple[Message, ...]:
    """Returns the messages for the items, media included; references are skipped. `path` is the
    path of the items for errors; the first `earlier` of them are not in the body. Raises
    `BadRequest`."""
    turns = _Turns()
    for at, item in enumerate(items):
        # Tools added by the first item are declared with the body's own.
        is_front = not at and kind_of(item) == ADDING
        if not (is_front or is_reference(item) or is_hosted(item)):
            turns.add(item, f"{path}[{at - earlier}]", max(at - earlier, BEFORE_ITEMS))
    turns.end_response()
    return tuple(turns.messages)


@dataclass(frozen=True, slots=True)
class AddedTools:
    """Lists of tools that input items add to the body's own, each with its path."""

    front: Sequence[tuple[object, str]] = ()
    """Lists of the first item: known from the beginning of the conversation."""
    late: Sequence[tuple[object, str]] = ()
    """Lists of later items and of the client's searches: known from their item on."""


def added_tools(items: Sequence[Item], *, earlier: int = 0) -> AddedTools:
    """Returns the lists of tools that the items add; arguments as in `messages_of`."""
    found = [
        (at, (item.get("tools"), f"input[{at - earlier}].tools"))
        for at, item in enumerate(items)
        if kind_of(item) in (ADDING, SEARCH_ITEMS[1]) and not is_hosted(item)
    ]
    is_front = bool(found) and not found[0][0] and kind_of(items[0]) == ADDING
    lists = [each for _, each in found]
    return AddedTools(lists[:is_front], lists[is_front:])


def left_out_items(items: Sequence[Item]) -> tuple[LeftOut, ...]:
    """Returns the items that report a host's work, or that only the host can read."""
    hosted = ((at, item) for at, item in enumerate(items) if is_hosted(item))
    return tuple(LeftOut(f"input[{at}]", str(kind_of(item))) for at, item in hosted)


@dataclass(slots=True)
class _AssistantItems:
    """The items of one response so far, in the order of arrival."""

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    source: str | None = None
    """The response that the items' ids name, as `_source` returns it."""
    ends_with_text: bool = False
    item: int = BEFORE_ITEMS
    """Index of the last item in the body."""

    @property
    def message(self) -> Message:
        # The texts of a response are joined as the model generated them, without a separator.
        reasoning = "\n".join(self.reasoning)
        text = "".join(self.texts)
        return Message("assistant", text, reasoning, tuple(self.calls), source=self.item)


class _Turns:
    """Builds messages from items, and joins those of one response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open = _AssistantItems()
        self._at = BEFORE_ITEMS
        self._names: dict[str, str] = {}
        """Function names by call id."""

    def add(self, item: Item, path: str, at: int) -> None:
        """Adds an item; `at` is its index in the body, or `BEFORE_ITEMS`."""
        self._at = at
        kind = kind_of(item)
        if kind == "message":
            self._message(item, path)
        elif (call := call_of(item, path)) is not None:
            self._call(call, item)
        elif is_output(kind):
            self._output(item, path)
        elif kind == "reasoning":
            self._add_reasoning(item, path)
        elif kind == ADDING:
            self._add_tools(item)
        else:
            raise BadRequest(f"{path}.type is not the type of an item.", param=f"{path}.type")

    def end_response(self) -> None:
        """Ends the open response: items that follow are not part of it."""
        response = self._open
        if response.reasoning or response.texts or response.calls:
            self.messages.append(response.message)
        self._open = _AssistantItems()

    def _response_of(self, item: Item) -> _AssistantItems:
        """Returns the response that the item belongs to: the open one, unless the item's id names
        another."""
        source = _source(item)
        if source is not None:
            if self._open.source not in (None, source):
                self.end_response()
            self._open.source = source
        self._open.item = self._at
        return self._open

    def _message(self, item: Item, path: str) -> None:
        role = next((role for role in _ROLES if role == item.get("role")), None)
        if role is None:
            raise BadRequest(
                f"{path}.role must be one of {', '.join(_ROLES)}.", param=f"{path}.role"
            )
        if role == "assistant":
            self._assistant_text(item, path)
            return
        self.end_response()
        content = content_of(parts_in(item.get("content"), f"{path}.content"))
        self.messages.append(Message(role, content, source=self._at))

    def _assistant_text(self, item: Item, path: str) -> None:
        content = item.get("content")
        text = "" if content is None else "".join(texts_in(content, f"{path}.content"))
        if not text:
            return
        response = self._response_of(item)
        if response.ends_with_text:
            # Consecutive texts are different responses: one response has its text in a single item
            # unless another item lies between.
            self.end_response()
            response = self._response_of(item)
        response.texts.append(text)
        response.ends_with_text = True

    def _add_reasoning(self, item: Item, path: str) -> None:
        text = reasoning_text(item, path)
        if text:
            response = self._response_of(item)
            response.reasoning.append(text)
            response.ends_with_text = False

    def _call(self, call: ToolCall, item: Item) -> None:
        response = self._response_of(item)
        response.calls.append(call)
        response.ends_with_text = False
        self._names[call.call_id] = call.name

    def _add_tools(self, item: Item) -> None:
        self.end_response()
        if text := tools_text(item.get("tools")):
            self.messages.append(Message("developer", text, source=self._at))

    def _output(self, item: Item, path: str) -> None:
        self.end_response()
        call_id = string_in(item, "call_id", path)
        output = output_of(item.get("output"))
        if kind_of(item) == SEARCH_ITEMS[1]:
            output = tools_text(item.get("tools")) or NONE_FOUND
        content = content_of([] if output is None else parts_in(output, f"{path}.output"))
        name = self._names.get(call_id, "")
        if not name and isinstance(item.get("name"), str):
            name = model_name(item["name"], item.get("namespace"))
        self.messages.append(
            Message("tool", content, tool_call_id=call_id, name=name, source=self._at)
        )


def _source(item: Item) -> str | None:
    """Returns the response that an item's id names, as its input or its output; None if the id is
    not one of ours."""
    item_id = item.get("id")
    response_id = response_of(item_id) if isinstance(item_id, str) else None
    if response_id is None:
        return None
    number = str(item_id).rpartition("-")[2]
    return response_id + " input" if number.startswith("i") else response_id
