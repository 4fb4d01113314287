"""Finds responses that the next turn's prompt does not repeat, by their first tokens."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from node.errors import BadRequest
from node.ipc.generate import SamplingParams
from node.prompt.template.chat import ANSWER, ChatRenderer
from node.request import Message, TextRequest, Tool, ToolCall

_CLOSING = re.compile(r"([<\[◁])/([\w:.|-]+)([>\]▷])")
"""Matches a closing marker of a part; without its slash, it is the opening one."""
_USER = Message("user", "y")
_TOOL = Tool({"name": "call", "description": "Calls.", "parameters": {"type": "object"}})
_CALL = ToolCall("nextcall1", _TOOL.name, "{}")
_RESULT = Message("tool", "y", tool_call_id=_CALL.call_id, name=_TOOL.name)

Encode = Callable[[str], tuple[int, ...]]


class DroppedOutputs(NamedTuple):
    """First tokens of responses of which the template drops a part, such as the reasoning; empty if
    it drops none."""

    at_user: tuple[int, ...] = ()
    """Dropped once a user message follows."""
    at_result: tuple[int, ...] = ()
    """Dropped once the result of a call follows."""
    unreturned: tuple[int, ...] = ()
    """Dropped once anything follows, if the client does not send reasoning back."""


class PartMarkers(NamedTuple):
    """The markers of a part of a response."""

    opening: str
    closing: str

    @property
    def is_reasoning(self) -> bool:
        return "think" in self.opening.lower()


def find_part_markers(template: str, vocabulary: Collection[str]) -> list[PartMarkers]:
    """Returns the parts that the template or the vocabulary shows."""
    names = [match.groups() for match in _CLOSING.finditer(template)]
    if "<think>" in vocabulary or "<think>" in template:
        names.append(("<", "think", ">"))
    parts = [
        PartMarkers(f"{left}{name}{right}", f"{left}/{name}{right}")
        for left, name, right in dict.fromkeys(names)
    ]
    # Reasoning first: responses begin with it.
    return sorted(parts, key=lambda part: not part.is_reasoning)


def find_dropped(
    chat: ChatRenderer, parts: Sequence[PartMarkers], encode: Encode, *, reads_reasoning: bool
) -> DroppedOutputs:
    """Finds the parts that the template drops. `reads_reasoning`: True if reasoning is parsed apart
    from content; a client can then send it back only in its own field."""
    probe = _Probe(chat, reads_reasoning=reads_reasoning)
    try:
        begin = probe.prompt(_USER)
        if not probe.text(Message("assistant", ANSWER), _USER).startswith(begin + ANSWER):
            return DroppedOutputs()
    except BadRequest:
        # A template that refuses such turns has no next turn that could reuse anything.
        return DroppedOutputs()
    # If the prompt itself opens a part, no response does.
    parts = [part for part in parts if not begin.rstrip().endswith(part.opening)]

    def first(*openings: str) -> tuple[int, ...]:
        return _first_tokens(begin, openings[0], encode) if openings else ()

    return DroppedOutputs(
        first(*(part.opening for part in parts if probe.drops(part, _USER))),
        first(*(part.opening for part in parts if probe.drops(part, _RESULT))),
        first(*(part.opening for part in parts if part.is_reasoning and reads_reasoning)),
    )


class _Probe:
    """Renders a response with a message that follows it."""

    def __init__(self, chat: ChatRenderer, *, reads_reasoning: bool) -> None:
        self._chat = chat
        self._reads_reasoning = reads_reasoning

    def prompt(self, follow: Message) -> str:
        """Returns the prompt that is responded to. Raises `BadRequest`."""
        return self._chat.apply(_request(follow), [_USER], generation=True)

    def text(self, answer: Message, follow: Message) -> str:
        """Returns the text with the response. Raises `BadRequest`."""
        return self._chat.apply(_request(follow), [_USER, answer, follow], generation=False)

    def drops(self, part: PartMarkers, follow: Message) -> bool:
        """True if the part is missing at the beginning of the response."""
        if part.is_reasoning and self._reads_reasoning:
            answer, rendered = Message("assistant", ANSWER, "r"), part.opening
            if follow is _RESULT:
                answer = Message("assistant", "", "r", (_CALL,))
        elif follow is _RESULT:
            return False
        else:
            rendered = f"{part.opening}\nr\n{part.closing}\n\n{ANSWER}"
            answer = Message("assistant", rendered)
        try:
            return not self.text(answer, follow).startswith(self.prompt(follow) + rendered)
        except BadRequest:
            return False


def _request(follow: Message) -> TextRequest:
    tools = (_TOOL,) if follow is _RESULT else ()
    return TextRequest("", SamplingParams(), (), None, stream=False, tools=tools)


def _first_tokens(begin: str, opening: str, encode: Encode) -> tuple[int, ...]:
    """Returns the tokens that all responses beginning with `opening` share; some tokenizers merge
    its end with the text that follows."""
    length = len(encode(begin))
    afters = ("", "\n", "\n\n", " ", "x")
    answers = [encode(begin + opening + after)[length:] for after in afters]
    columns = list(zip(*answers, strict=False))
    count = next((at for at, ids in enumerate(columns) if len(set(ids)) > 1), len(columns))
    return answers[0][:count]
