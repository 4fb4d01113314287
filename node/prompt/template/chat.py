"""Renders a chat to the text of its prompt, and to the text with which the next turn's prompt
begins."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from node.errors import BadRequest
from node.prompt.template.abilities import find_abilities
from node.prompt.template.chat_template import ChatTemplate
from node.prompt.template.item_ends import Marks
from node.prompt.template.messages import build_turns
from node.prompt.template.options import template_variables
from node.prompt.template.stable_history import EMPTY_REASONING
from node.prompt.template.tools import TemplateTools
from node.prompt.tokenize import common_length
from node.request import Content, Message, TextPart, TextRequest, Tool, ToolCall

ANSWER = "x"
"""Placeholder for the response in the next turn."""
TAIL_LENGTH = 512
"""Most characters of a prompt's tail."""
MARKERS = [chr(number) for number in range(0xE000, 0xE100)]
"""Private-use characters; it is unlikely that a request has all of them."""

_CLOSED = re.compile(r"[<\[]/[\w:|]*think[\w:|]*[>\]]\s*\Z", re.IGNORECASE)
"""Matches the end of a prompt that closes the reasoning with which the response would begin."""
_MOST_KNOWN = 64
_FRONT, _RESULT = "front", "result"
"""Names of marks; marks at the ends of messages have numbers instead."""
_USER = Message("user", "y")
_CALL_ID = "nextcall1"


class NextTurn(NamedTuple):
    """The beginning of the next turn's prompt."""

    text: str
    ends: tuple[int, ...]
    """Ascending positions in the text at which messages of this turn end."""
    marks: Marks
    """The ends by message, and the end of the tools' description."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A rendered chat."""

    text: str
    following: NextTurn | None
    """None if the template refuses a next turn, or no character is free to mark it."""
    shared: int
    """Number of characters that both texts have in common at their beginning."""
    tail: str
    """The end of the text from the end of the last message on, at most `TAIL_LENGTH` characters; if
    the response continues that message, all of the message's text."""


class ChatRenderer:
    """Renders prompts with one template. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate, tool_format: str) -> None:
        """`tool_format`: the name in `node.parsing` of the model's form of calls. If the template
        normalizes, it also keeps the reasoning of a session with tools. Slow: call it in a
        thread."""
        self.template = template
        self.abilities = find_abilities(template)
        self._tools = TemplateTools(template, self.abilities)
        self._tool_format = tool_format
        self._closing: dict[str, bool] = {}
        """True if the prompt closes the reasoning, by template variables; the last ones only."""

    def render(self, request: TextRequest) -> Chat:
        """Renders the chat. Raises `BadRequest` naming the field that cannot be rendered."""
        return self.chat(request, self.text(request))

    def text(self, request: TextRequest) -> str:
        """Returns the text of the prompt alone. Raises as `render`."""
        if request.continue_final:
            return self._open_ended(request)
        return self.apply(request, request.messages or (), generation=True)

    def chat(self, request: TextRequest, text: str) -> Chat:
        """Renders the rest of the chat whose prompt has that text."""
        messages = request.messages or ()
        if request.continue_final:
            *before, last = messages
            # The response is a part of the last message.
            following = self._next_turn(request, [*before, _extended(last, ANSWER)], (_USER,))
            own_ends = 1 if last.content else 0
            # The markers of its reasoning may be far from its end.
            most = len(text)
        else:
            following = self._next_turn(request, messages, self._rest(request))
            own_ends, most = 0, TAIL_LENGTH
        ends = following.ends[: len(following.ends) - own_ends] if following else ()
        shared = common_length(text, following.text) if following else 0
        begin = ends[-1] if ends and ends[-1] <= shared else self._last_end(request, text)
        return Chat(text, following, shared, text[begin:][-most:])

    def render_shared(self, request: TextRequest) -> NextTurn | None:
        """Renders the request's messages as part of a longer chat. None as in `Chat.following`."""
        messages = request.messages or ()
        rest: tuple[Message, ...] = (_USER,)
        # Many templates need a user message behind a lone system message.
        if messages[-1].role in ("user", "tool"):
            rest = (Message("assistant", ANSWER), _USER)
        return self._next_turn(request, messages, rest)

    def apply(self, request: TextRequest, messages: Sequence[Message], *, generation: bool) -> str:
        """Returns the text of other messages with the request's tools and options. Raises
        `BadRequest`."""
        abilities = self.abilities
        turns = build_turns(messages, request.tools, abilities, self._tool_format)
        tools = self._tools.listed(request.tools)
        variables = self._variables(request, messages)
        return self.template.render(turns, tools, variables, generation=generation)

    def _variables(self, request: TextRequest, messages: Sequence[Message]) -> dict[str, Any]:
        variables = template_variables(request.template, self.abilities)
        if not self.template.normalize:
            return variables
        # Reasoning that is dropped at the next user message takes a whole loop of calls out of the
        # cache.
        is_kept = bool(request.tools) and returns_reasoning(messages)
        kept = self.abilities.keep_reasoning if is_kept else {}
        variables = {**kept, **variables}
        if self.template.asks_empty_reasoning:
            variables[EMPTY_REASONING] = self._closes_reasoning(variables)
        return variables

    def _closes_reasoning(self, variables: Mapping[str, Any]) -> bool:
        """True if the prompt itself closes the response's reasoning, under these variables."""
        key = repr(sorted(variables.items()))
        closes = self._closing.get(key)
        if closes is None:
            turns = build_turns((_USER,), (), self.abilities, self._tool_format)
            tools = self._tools.listed(())
            try:
                text = self.template.render(turns, tools, variables, generation=True)
            except BadRequest:
                # The template will refuse the request's own messages too.
                return False
            closes = _CLOSED.search(text) is not None
            if len(self._closing) >= _MOST_KNOWN:
                self._closing.clear()
            self._closing[key] = closes
        return closes

    def _rest(self, request: TextRequest) -> tuple[Message, ...]:
        """Returns a response and what may follow it: with tools a call and its result, since a loop
        of calls is longer than the part between two user messages."""
        messages = request.messages or ()
        if messages[-1].role == "assistant":
            return (_USER,)
        reasoning = ANSWER if returns_reasoning(messages) else ""
        if not request.tools or not self.abilities.calls:
            return (Message("assistant", ANSWER, reasoning), _USER)
        call = ToolCall(_CALL_ID, request.tools[0].name, "{}")
        result = Message("tool", "y", tool_call_id=_CALL_ID, name=call.name)
        return (Message("assistant", "", reasoning, (call,)), result)

    def _next_turn(
        self, request: TextRequest, messages: Sequence[Message], rest: Sequence[Message]
    ) -> NextTurn | None:
        marker = _free_marker(messages, request.tools)
        if marker is None:
            return None
        try:
            marked = _marked(messages, marker, has_tools=bool(request.tools))
            text = self.apply(request, [*marked, *rest], generation=False)
        except BadRequest:
            return None
        return _read_marks(text, marker)

    def _open_ended(self, request: TextRequest) -> str:
        """Returns the text up to the end of the last message's content, or of its reasoning if it
        has nothing else."""
        *before, last = request.messages or ()
        marker = _free_marker([*before, last], request.tools)
        if marker is None:
            raise BadRequest(
                "The messages use all private-use characters that could mark their ends.",
                param="messages",
            )
        whole = self.apply(request, [*before, _extended(last, marker)], generation=False)
        text, _, _ = whole.rpartition(marker)
        written = "".join(_texts(last.content)) or last.reasoning
        if not written or not text.endswith(written.lstrip()):
            raise BadRequest(
                "The model's chat template changes the text of the last message, so the response "
                "cannot continue it.",
                param="messages",
            )
        return text

    def _last_end(self, request: TextRequest, text: str) -> int:
        """Returns the position in the prompt's text where the last message ends, without the next
        turn's text; 0 if unknown."""
        messages = request.messages or ()
        if request.continue_final:
            messages = messages[:-1]
        try:
            before = self.apply(request, messages, generation=False) if messages else ""
        except BadRequest:
            return 0
        return len(before) if text.startswith(before) else 0


def returns_reasoning(messages: Sequence[Message]) -> bool:
    """True if the client sends back the reasoning of responses, as far as the chat shows it."""
    answers = [message for message in messages if message.role == "assistant"]
    return not answers or any(message.reasoning for message in answers)


def _texts(content: Content) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.text for part in content if isinstance(part, TextPart)]


def _extended(message: Message, text: str) -> Message:
    """Appends the text to the message's content, or to its reasoning if it has nothing else."""
    content = message.content
    if not content:
        return replace(message, reasoning=message.reasoning + text)
    longer = content + text if isinstance(content, str) else (*content, TextPart(text))
    return replace(message, content=longer)


def _free_marker(messages: Sequence[Message], tools: Sequence[Tool]) -> str | None:
    """Returns a character that no text of the request contains; None if there is none."""
    texts = [text for message in messages for text in (*_texts(message.content), message.reasoning)]
    texts += [call.arguments for message in messages for call in message.tool_calls]
    if tools:
        texts.append(msgspec.json.encode([tool.function for tool in tools]).decode())
    return next((mark for mark in MARKERS if not any(mark in text for text in texts)), None)


def _marked(messages: Sequence[Message], marker: str, *, has_tools: bool) -> list[Message]:
    """Returns the messages with a mark behind each content: its number between two markers. For a
    message with calls but no content, the mark is where the first result begins. With tools, the
    beginning of the first message that is not a system message has a mark, too, since a template
    may describe tools before it."""
    marked = []
    begins_result, is_front = False, has_tools
    for number, message in enumerate(messages):
        content = message.content
        if is_front and message.role not in ("system", "developer"):
            is_front = False
            content = _mark_begin(content, marker + _FRONT + marker)
        if begins_result and message.role == "tool":
            content = _mark_begin(content, marker + _RESULT + marker)
        begins_result = bool(message.tool_calls) and not any(_texts(content))
        marked.append(replace(message, content=_mark_end(content, f"{marker}{number}{marker}")))
    return marked


def _read_marks(text: str, marker: str) -> NextTurn | None:
    """Removes the marks from the text and records their positions. None if the template has cut one
    off."""
    pieces = text.split(marker)
    if len(pieces) % 2 == 0:
        return None
    found: list[tuple[str, int]] = []
    length = 0
    for piece, name in zip(pieces[::2], pieces[1::2], strict=False):
        length += len(piece)
        found.append((name, length))
    if not all(name in (_FRONT, _RESULT) or name.isdecimal() for name, _ in found):
        return None
    ends = tuple(at for name, at in found if name != _FRONT)
    # The first of each counts.
    first = dict(reversed(found))
    front = first.get(_FRONT)
    numbered = {int(name): at for name, at in first.items() if name.isdecimal()}
    return NextTurn("".join(pieces[::2]), ends, Marks(numbered, front))


def _mark_end(content: Content, marker: str) -> Content:
    """Puts the marker before the space at the end, which a template may strip. Content without text
    stays as it is, for templates that test for it."""
    if isinstance(content, str):
        body = content.rstrip()
        return body + marker + content[len(body) :] if body else content
    for at in range(len(content) - 1, -1, -1):
        part = content[at]
        if isinstance(part, TextPart) and part.text.strip():
            return (
                *content[:at],
                TextPart(str(_mark_end(part.text, marker))),
                *content[at + 1 :],
            )
    return content


def _mark_begin(content: Content, marker: str) -> Content:
    if isinstance(content, str):
        body = content.lstrip()
        return content[: len(content) - len(body)] + marker + body if body else content
    for at, part in enumerate(content):
        if isinstance(part, TextPart) and part.text.strip():
            first = TextPart(str(_mark_begin(part.text, marker)))
            return (*content[:at], first, *content[at + 1 :])
    return content
