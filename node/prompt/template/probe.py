"""Small conversations of known words, rendered with a chat template to test what it does."""

from collections.abc import Mapping, Sequence
from typing import Any

from node.errors import BadRequest
from node.prompt.template.chat_template import ChatTemplate, Turn

# Each is one word that no template contains itself.
SYSTEM, SECOND, USER, LATER = "wordsystem", "wordsecond", "worduser", "wordlater"
ANSWER, VALUE, OTHER = "wordanswer", "wordvalue", "wordother"
RESULT, FOUND, THOUGHT = "wordresult", "wordfound", "wordthought"
KEY, NAME = "wordkey", "wordtool"
_PROPERTIES = {KEY: {"type": "string", "description": "A word."}}
FUNCTION = {
    "name": NAME,
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": _PROPERTIES, "required": [KEY]},
}
SHORT_ID, LONG_ID = "abcd12345", "call_0123456789abcdef01234567"


class Probe:
    """Renders conversations made of the words above."""

    def __init__(self, template: ChatTemplate, only_parts: frozenset[str] = frozenset()) -> None:
        """`only_parts`: roles whose content is passed as a list of parts."""
        self._template = template
        self.only_parts = only_parts
        self.empty_tools = False
        self.empty_tools = self.text([user()]) is None

    def text(
        self,
        turns: Sequence[Turn],
        tools: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Renders the turns; None if the template refuses them. `tools`: a single function."""
        given = [_as_parts(t) if t["role"] in self.only_parts else t for t in turns]
        listed = [{"type": "function", "function": tools}] if tools else None
        if listed is None and self.empty_tools:
            listed = []
        generation = turns[-1]["role"] != "assistant"
        try:
            return self._template.render(given, listed, variables or {}, generation=generation)
        except BadRequest:
            return None

    def shows(
        self, turns: Sequence[Turn], *words: str, tools: Mapping[str, Any] | None = None
    ) -> bool:
        """True if the text has the words in this order."""
        text, at = self.text(turns, tools), 0
        for word in words:
            at = -1 if text is None else text.find(word, at)
            if at < 0:
                return False
        return True


def turn(role: str, content: Any, **more: Any) -> Turn:
    return {"role": role, "content": content, **more}


def _as_parts(given: Turn) -> Turn:
    if isinstance(given["content"], str):
        return {**given, "content": text_parts(given["content"])}
    return given


def text_parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def system(text: Any = SYSTEM) -> Turn:
    return turn("system", text)


def user(text: Any = USER) -> Turn:
    return turn("user", text)


def assistant(text: Any = ANSWER, **more: Any) -> Turn:
    return turn("assistant", text, **more)


def call(arguments: Any, call_id: str = SHORT_ID) -> Turn:
    function = {"name": NAME, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def result(text: Any = RESULT, call_id: str = SHORT_ID) -> Turn:
    return turn("tool", text, tool_call_id=call_id, name=NAME)
