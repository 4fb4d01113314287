"""Answers that the next turn's prompt does not repeat, told by how they begin."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from node.errors import BadRequest
from node.ipc.generate import SamplingParams
from node.prompt.template.chat import ANSWER, ChatRenderer
from node.request import Message, TextRequest, Tool, ToolCall

_CLOSING = re.compile(r"([<\[◁])/([\w:.|-]+)([>\]▷])")
"""What closes a part of an answer; without the slash, what opens it."""
_USER = Message("user", "y")
_TOOL = Tool({"name": "call", "description": "Calls.", "parameters": {"type": "object"}})
_CALL = ToolCall("nextcall1", _TOOL.name, "{}")
_RESULT = Message("tool", "y", tool_call_id=_CALL.call_id, name=_TOOL.name)

Encode = Callable[[str], tuple[int, ...]]


class DroppedAnswers(NamedTuple):
    """First tokens of answers of which the template drops a part, such as the reasoning; empty if
    it drops none."""

    at_user: tuple[int, ...] = ()
    """Once a user's message follows."""
    at_result: tuple[int, ...] = ()
    """Once the result of a call follows."""
    unreturned: tuple[int, ...] = ()
    """Once anything follows, if the client does not give reasoning back."""


class Part(NamedTuple):
    """Of an answer: its markers."""

    opening: str
    closing: str

    @property
    def is_reasoning(self) -> bool:
        return "think" in self.opening.lower()


def parts_of_answers(template: str, vocabulary: Collection[str]) -> list[Part]:
    """As far as the template or the vocabulary tell."""
    names = [match.groups() for match in _CLOSING.finditer(template)]
    if "<think>" in vocabulary or "<think>" in template:
        names.append(("<", "think", ">"))
    parts = [
        Part(f"{left}{name}{right}", f"{left}/{name}{right}")
        for left, name, right in dict.fromkeys(names)
    ]
    # Reasoning first: it is what answers begin with.
    return sorted(parts, key=lambda part: not part.is_reasoning)


def find_dropped(
    chat: ChatRenderer, parts: Sequence[Part], encode: Encode, *, reads_reasoning: bool
) -> DroppedAnswers:
    """`reads_reasoning`: whether reasoning is told apart from content; a client can then give it
    back apart only."""
    probe = _Probe(chat, reads_reasoning=reads_reasoning)
    try:
        begin = probe.prompt(_USER)
        if not probe.text(Message("assistant", ANSWER), _USER).startswith(begin + ANSWER):
            return DroppedAnswers()
    except BadRequest:
        # One that takes no such turns has no next turn to reuse anything.
        return DroppedAnswers()
    # Where the prompt itself opens a part, no answer does.
    parts = [part for part in parts if not begin.rstrip().endswith(part.opening)]

    def first(*openings: str) -> tuple[int, ...]:
        return _first_tokens(begin, openings[0], encode) if openings else ()

    return DroppedAnswers(
        first(*(part.opening for part in parts if probe.drops(part, _USER))),
        first(*(part.opening for part in parts if probe.drops(part, _RESULT))),
        first(*(part.opening for part in parts if part.is_reasoning and reads_reasoning)),
    )


class _Probe:
    """Renders an answer with what may follow it."""

    def __init__(self, chat: ChatRenderer, *, reads_reasoning: bool) -> None:
        self._chat = chat
        self._reads_reasoning = reads_reasoning

    def prompt(self, follow: Message) -> str:
        """What is answered. Raises `BadRequest`."""
        return self._chat.apply(_request(follow), [_USER], generation=True)

    def text(self, answer: Message, follow: Message) -> str:
        """Raises `BadRequest`."""
        return self._chat.apply(_request(follow), [_USER, answer, follow], generation=False)

    def drops(self, part: Part, follow: Message) -> bool:
        """Whether the part is gone from the begin of an answer."""
        if part.is_reasoning and self._reads_reasoning:
            answer, said = Message("assistant", ANSWER, "r"), part.opening
            if follow is _RESULT:
                answer = Message("assistant", "", "r", (_CALL,))
        elif follow is _RESULT:
            return False
        else:
            said = f"{part.opening}\nr\n{part.closing}\n\n{ANSWER}"
            answer = Message("assistant", said)
        try:
            return not self.text(answer, follow).startswith(self.prompt(follow) + said)
        except BadRequest:
            return False


def _request(follow: Message) -> TextRequest:
    tools = (_TOOL,) if follow is _RESULT else ()
    return TextRequest("", SamplingParams(), (), None, stream=False, tools=tools)


def _first_tokens(begin: str, opening: str, encode: Encode) -> tuple[int, ...]:
    """Those that answers have in common that begin with `opening`, of which some tokenisers merge
    the end with the text that follows."""
    length = len(encode(begin))
    afters = ("", "\n", "\n\n", " ", "x")
    answers = [encode(begin + opening + after)[length:] for after in afters]
    columns = list(zip(*answers, strict=False))
    count = next((at for at, ids in enumerate(columns) if len(set(ids)) > 1), len(columns))
    return answers[0][:count]
