"""Finds where the items of a body end in its prompt's text, as far as every prompt whose body
begins with the same items shares that text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.protocol.chain.volatile import without_volatile_lines
from node.request import BEFORE_ITEMS, NO_ITEM, MediaPart, Message, TextPart

_SYSTEMS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A message's text that the prompt has in the same form as the body."""

    begin: int
    """In characters of the prompt's text, like `end`."""
    end: int
    ahead_bytes: int
    """Most bytes of the item's canonical form that come before the text."""


@dataclass(frozen=True, slots=True)
class ItemSpan:
    """The span of the prompt for one item, or for all that comes before the first one."""

    end: int
    """In characters; the end of an earlier item if its own is unknown."""
    stretches: tuple[Stretch, ...] = ()
    """In order."""
    form_bytes: int = 0
    """Bytes of the canonical forms of its messages."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptLayout:
    """The layout of one prompt: the spans of the items of its body."""

    text: str
    """The prompt's text; may be empty if all stretches have one byte for each character."""
    tokens_within: Callable[[int], int]
    """Returns the number of the prompt's tokens that lie wholly within a number of characters."""
    preamble: ItemSpan
    items: tuple[ItemSpan, ...]
    """The last items may be missing."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Positions of messages in the template's text, in characters."""

    ends: Mapping[int, int]
    """The ends of messages, by index, as far as they are known."""
    front: int | None = None
    """End of everything before the first message that is not a system message."""


def message_text(message: Message) -> str:
    """Returns a message's text as one string, without what prompts do not show of it."""
    content = message.content
    texts = [content] if isinstance(content, str) else [_text_of(part) for part in content]
    if message.role in _SYSTEMS:
        texts = [without_volatile_lines(text) for text in texts]
    # As long as the separator in the canonical form.
    return ("" if message.role == "assistant" else "\n").join(filter(None, texts))


def length_of(message: Message) -> int:
    """Returns the length of all of the message's texts, in characters."""
    content = message.content
    texts = [content] if isinstance(content, str) else map(_text_of, content)
    return sum(map(len, texts)) + len(_called(message)) + len(message.reasoning)


def bare_layout(messages: Sequence[Message], tokens_within: Callable[[int], int]) -> PromptLayout:
    """Returns the layout of a prompt that is only the messages' texts, concatenated."""
    texts, ends, length = [], {}, 0
    for number, message in enumerate(messages):
        texts.append(message_text(message) + _called(message))
        length += len(texts[-1])
        ends[number] = length
    return find_layout(messages, "".join(texts), Marks(ends), tokens_within)


def _called(message: Message) -> str:
    return "".join(call.name + call.arguments for call in message.tool_calls)


def _text_of(part: TextPart | MediaPart) -> str:
    return part.text if isinstance(part, TextPart) else ""


def whole_text_layout(text: str, length: int, tokens_within: Callable[[int], int]) -> PromptLayout:
    """Returns the layout of a prompt that is one item of `length` characters."""
    item = ItemSpan(length, (Stretch(0, length, 1),))
    return PromptLayout(text, tokens_within, ItemSpan(0), (item,))


def find_layout(
    messages: Sequence[Message], text: str, marks: Marks, tokens_within: Callable[[int], int]
) -> PromptLayout:
    """Returns the layout of a chat's prompt with this text."""
    count = next((i for i, each in enumerate(messages) if each.role not in _SYSTEMS), len(messages))
    ends, front = dict(marks.ends), marks.front
    if count and front is not None and front >= ends.get(count - 1, 0):
        # A template may describe tools behind the system prompt.
        ends[count - 1] = front
    settled = _settled(ends)
    spans: dict[int, ItemSpan] = {}
    if not count and front is not None and front <= min(ends.values(), default=front):
        spans[BEFORE_ITEMS] = ItemSpan(front)
    at = 0
    for number, message in enumerate(messages):
        if message.source == NO_ITEM:
            continue
        before = spans.get(message.source, ItemSpan(at))
        at = max(at, settled.get(number, 0))
        spans[message.source] = _longer(before, message, text, at, marks.ends.get(number))
    items, last = [], spans.get(BEFORE_ITEMS, ItemSpan(0))
    for source in range(max(spans, default=BEFORE_ITEMS) + 1):
        last = spans.get(source, ItemSpan(last.end))
        items.append(last)
    return PromptLayout(text, tokens_within, spans.get(BEFORE_ITEMS, ItemSpan(0)), tuple(items))


def _settled(ends: Mapping[int, int]) -> dict[int, int]:
    """Drops the ends that lie behind the text of a later message."""
    settled: dict[int, int] = {}
    least: int | None = None
    for number in sorted(ends, reverse=True):
        if least is None or ends[number] <= least:
            settled[number] = least = ends[number]
    return settled


def _longer(before: ItemSpan, message: Message, text: str, at: int, end: int | None) -> ItemSpan:
    """Returns the span with one more message, whose text ends at `end`."""
    shown = message_text(message)
    ahead_bytes = before.form_bytes + 1
    form_bytes = ahead_bytes + _bytes(shown) + 1
    if message.name:
        form_bytes += _bytes(message.name) + 2
    stretches = before.stretches
    if end is not None and end <= at:
        found = _stretch(shown, text, end, ahead_bytes)
        stretches = (*stretches, found) if found else stretches
    return ItemSpan(at, stretches, form_bytes)


def _stretch(shown: str, text: str, end: int, ahead_bytes: int) -> Stretch | None:
    """Returns the stretch before `end` if it is the message's text, which a template may have
    stripped."""
    body = shown.rstrip()
    for kept, stripped in ((shown, ""), (body, ""), (body.lstrip(), body[: -len(body.lstrip())])):
        begin = end - len(kept)
        if kept and begin >= 0 and text.startswith(kept, begin):
            return Stretch(begin, end, ahead_bytes + _bytes(stripped))
    return None


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
