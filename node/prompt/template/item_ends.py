"""Where in a prompt's text the items of its body end, as far as every prompt shares it whose body
begins with the same items."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.protocol.volatile import without_volatile_lines
from node.request import BEFORE_ITEMS, NO_ITEM, MediaPart, Message, TextPart

_SYSTEMS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A message's text, which stands in the prompt as the body has it."""

    begin: int
    """In characters of the prompt's text, as `end`."""
    end: int
    ahead_bytes: int
    """At most so many bytes of its item's canonical form come before it."""


@dataclass(frozen=True, slots=True)
class Place:
    """An item, or all that stands before the first one."""

    end: int
    """In characters; the end of an earlier one where its own is not known."""
    stretches: tuple[Stretch, ...] = ()
    """In their order."""
    form_bytes: int = 0
    """Of its messages' canonical forms."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """All of one prompt."""

    text: str
    """Of the prompt; may be empty where all stretches have one byte for each character."""
    tokens_within: Callable[[int], int]
    """How many of the prompt's tokens lie wholly within so many characters."""
    preamble: Place
    items: tuple[Place, ...]
    """The last items may be missing."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a template's text tells of the messages in it, in characters."""

    ends: Mapping[int, int]
    """By index, of those messages whose end is to be seen."""
    front: int | None = None
    """Where all ends that comes before the first message that is no system's."""


def said(message: Message) -> str:
    """A message's text as one string, without what a prompt does not show of it."""
    content = message.content
    texts = [content] if isinstance(content, str) else [_text_of(part) for part in content]
    if message.role in _SYSTEMS:
        texts = [without_volatile_lines(text) for text in texts]
    # As long as what the canonical form has between them.
    return ("" if message.role == "assistant" else "\n").join(filter(None, texts))


def length_of(message: Message) -> int:
    """All that it says, in characters."""
    content = message.content
    texts = [content] if isinstance(content, str) else map(_text_of, content)
    return sum(map(len, texts)) + len(_called(message)) + len(message.reasoning)


def bare_places(messages: Sequence[Message], tokens_within: Callable[[int], int]) -> Places:
    """Of a prompt that is nothing but what the messages say, one behind the other."""
    texts, ends, length = [], {}, 0
    for number, message in enumerate(messages):
        texts.append(said(message) + _called(message))
        length += len(texts[-1])
        ends[number] = length
    return find_places(messages, "".join(texts), Marks(ends), tokens_within)


def _called(message: Message) -> str:
    return "".join(call.name + call.arguments for call in message.tool_calls)


def _text_of(part: TextPart | MediaPart) -> str:
    return part.text if isinstance(part, TextPart) else ""


def whole_text(text: str, length: int, tokens_within: Callable[[int], int]) -> Places:
    """The places of a prompt that is one item, of so many characters."""
    item = Place(length, (Stretch(0, length, 1),))
    return Places(text, tokens_within, Place(0), (item,))


def find_places(
    messages: Sequence[Message], text: str, marks: Marks, tokens_within: Callable[[int], int]
) -> Places:
    """The places of a chat's items in the prompt's `text`."""
    count = next((i for i, each in enumerate(messages) if each.role not in _SYSTEMS), len(messages))
    ends, front = dict(marks.ends), marks.front
    if count and front is not None and front >= ends.get(count - 1, 0):
        # What a template tells of tools may be behind the system prompt.
        ends[count - 1] = front
    settled = _settled(ends)
    places: dict[int, Place] = {}
    if not count and front is not None and front <= min(ends.values(), default=front):
        places[BEFORE_ITEMS] = Place(front)
    at = 0
    for number, message in enumerate(messages):
        if message.source == NO_ITEM:
            continue
        before = places.get(message.source, Place(at))
        at = max(at, settled.get(number, 0))
        places[message.source] = _longer(before, message, text, at, marks.ends.get(number))
    items, last = [], places.get(BEFORE_ITEMS, Place(0))
    for source in range(max(places, default=BEFORE_ITEMS) + 1):
        last = places.get(source, Place(last.end))
        items.append(last)
    return Places(text, tokens_within, places.get(BEFORE_ITEMS, Place(0)), tuple(items))


def _settled(ends: Mapping[int, int]) -> dict[int, int]:
    """Without those that a later message's text comes before."""
    settled: dict[int, int] = {}
    least: int | None = None
    for number in sorted(ends, reverse=True):
        if least is None or ends[number] <= least:
            settled[number] = least = ends[number]
    return settled


def _longer(before: Place, message: Message, text: str, at: int, end: int | None) -> Place:
    """A place with one more message. `end`: of the message's text."""
    shown = said(message)
    ahead_bytes = before.form_bytes + 1
    form_bytes = ahead_bytes + _bytes(shown) + 1
    if message.name:
        form_bytes += _bytes(message.name) + 2
    stretches = before.stretches
    if end is not None and end <= at:
        found = _stretch(shown, text, end, ahead_bytes)
        stretches = (*stretches, found) if found else stretches
    return Place(at, stretches, form_bytes)


def _stretch(shown: str, text: str, end: int, ahead_bytes: int) -> Stretch | None:
    """The text before `end`, if that is what was said; a template may strip it."""
    body = shown.rstrip()
    for kept, stripped in ((shown, ""), (body, ""), (body.lstrip(), body[: -len(body.lstrip())])):
        begin = end - len(kept)
        if kept and begin >= 0 and text.startswith(kept, begin):
            return Stretch(begin, end, ahead_bytes + _bytes(stripped))
    return None


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
