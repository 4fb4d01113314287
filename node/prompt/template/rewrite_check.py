"""Checks that a changed template program still renders everything that the author's program
does."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from node.prompt.template.stable_history import EMPTY_REASONING

Tools = Sequence[Mapping[str, Any]] | None
Render = Callable[[Sequence[dict[str, Any]], Tools, Mapping[str, Any]], str | None]
"""Renders messages, tools and variables to text; None if the program refuses them."""

_QUESTION, _ANSWER = "wordasked", "wordanswer"
_MORE, _LATER, _THOUGHT = "wordmore", "wordlater", "wordthought"
_RESULTS = ("wordfirstresult", "wordsecondresult")
_VALUES = ("wordfirstvalue", "wordsecondvalue")
_NAME = "wordtool"
_IDS = ("abcd12345", "efgh67890")
_KEY = "word"
_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string", "description": "A."}}}
_FUNCTION = {"name": _NAME, "description": "Looks up.", "parameters": _PARAMETERS}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
WORDS = (_QUESTION, _ANSWER, _MORE, _LATER, _THOUGHT, *_RESULTS, *_VALUES, _NAME)


def keeps_words(authors: Render, ours: Render) -> bool:
    """True if each word of small chats in the author's text is also in ours. Renders some fifteen
    chats with each program."""
    for messages in _chats():
        for is_closed in (False, True):
            variables = {EMPTY_REASONING: is_closed}
            before, given = authors(messages, _TOOLS, variables), messages
            if before is None:
                # Some templates accept arguments as text only.
                given = [_with_text(message) for message in messages]
                before = authors(given, _TOOLS, variables)
            if before is not None and _loses(before, ours(given, _TOOLS, variables)):
                return False
    return True


def _loses(before: str, after: str | None) -> bool:
    return after is None or any(before.count(word) > after.count(word) for word in WORDS)


def _chats() -> Iterator[list[dict[str, Any]]]:
    """Yields chats with and without reasoning: a plain one, a loop of calls with two at once, and
    two loops."""
    first, more = ({"role": "user", "content": word} for word in (_QUESTION, _MORE))
    results = [_result(0), _result(1)]
    for thoughts in ({}, dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _THOUGHT)):
        answer = {"role": "assistant", "content": _ANSWER, **thoughts}
        one, two = (_calling(count) | thoughts for count in (1, 2))
        yield [first, answer, more, {**answer, "content": _LATER}, first]
        yield [first, one, results[0], two, *results]
        yield [first, two, *results, answer, more, one, results[0]]


def _calling(count: int) -> dict[str, Any]:
    calls = []
    for value, call_id in zip(_VALUES[:count], _IDS, strict=False):
        function = {"name": _NAME, "arguments": {_KEY: value}}
        calls.append({"id": call_id, "type": "function", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message with the arguments of its calls as text."""
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = json.dumps(call["function"]["arguments"])
        calls.append({**call, "function": {"name": _NAME, "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else message


def _result(number: int) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": _RESULTS[number],
        "tool_call_id": _IDS[number],
        "name": _NAME,
    }
