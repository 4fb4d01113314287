"""What a chat template can take, found out by rendering small conversations with it.

Templates differ in the roles that they know, in the order that they want, and in how they want
tool calls. What one refuses, or leaves out of its text without a word, it cannot take.
"""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.errors import BadRequest
from node.template.chat_template import ChatTemplate, Turn

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""From the least to the most."""
OFF_EFFORTS = ("no_think", "none", "minimal", "low")
"""What an effort without thinking may be called, the best first."""
EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort")
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "tool_plan")

# Each is one word that no template has by itself.
_SYSTEM, _SECOND, _USER, _LATER = "wordsystem", "wordsecond", "worduser", "wordlater"
_ANSWER, _VALUE, _OTHER = "wordanswer", "wordvalue", "wordother"
_RESULT, _RESULT_2, _THOUGHT = "wordresult", "wordfound", "wordthought"
_KEY, _NAME = "wordkey", "wordtool"
_PROPERTIES = {_KEY: {"type": "string", "description": "A word."}}
_FUNCTION = {
    "name": _NAME,
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": _PROPERTIES, "required": [_KEY]},
}
_BARE_FUNCTION = {"name": _NAME}
_BARE_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string"}}}
_SHORT_ID, _LONG_ID = "abcd12345", "call_0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one template can take."""

    empty_tools: bool = False
    """Without tools, it wants a list without any in place of none."""
    only_parts: frozenset[str] = frozenset()
    """Roles whose content it takes as a list of parts only."""
    parts: bool = False
    """A user's content may be a list of parts."""
    system: bool = False
    several_systems: bool = False
    """Several at the begin."""
    late_system: bool = False
    """Behind other messages, and it stays there."""
    developer: bool = False
    user_twice: bool = False
    """Two messages of the user in a row."""
    assistant_twice: bool = False
    assistant_first: bool = False
    empty_assistant: bool = False
    """A message of the assistant without anything."""
    tools: bool = False
    """It describes the tools to the model."""
    tools_with_system: bool = False
    """It does that only where there is a system message."""
    bare_tools: bool = False
    """Also those without a description and parameters."""
    bare_parameters: bool = False
    """Also parameters without descriptions."""
    calls: bool = False
    """It spells calls and their results, in a request with tools."""
    calls_alone: bool = False
    """The same in a request without tools."""
    results: bool = False
    """It spells results at least, behind calls that are text."""
    parallel_calls: bool = False
    """Several calls in one message."""
    string_arguments: bool = False
    """It wants the arguments of calls as JSON text, not as an object."""
    long_ids: bool = False
    """Ids of calls may be anything; else nine letters and digits."""
    user_after_result: bool = False
    """A user may speak before the assistant has answered to a result."""
    text_beside_reasoning: bool = False
    """A message with calls may have both."""
    reasoning_part: bool = False
    """It takes reasoning as a part of the content."""
    reasoning_fields: tuple[str, ...] = ()
    """Names under which it may look for reasoning."""
    efforts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By variable that it reads: the values of `EFFORTS` that it takes."""
    off_efforts: Mapping[str, str] = field(default_factory=dict)
    """By variable: the value that stands for no thinking, or for the least, where thinking has no
    variable of its own."""
    on_efforts: Mapping[str, str] = field(default_factory=dict)
    """By variable: the value that stands for thinking, where it does not think by itself."""
    example_call: str = ""
    """How it spells a call, where it spells calls but describes no tools."""


def find_abilities(template: ChatTemplate) -> Abilities:
    """Renders about forty short conversations; takes some 10 ms."""
    probe = _Probe(template)
    known: dict[str, Any] = {
        **_contents(probe),
        "system": probe.shows([_system(), _user()], _SYSTEM, _USER),
        "several_systems": probe.shows(
            [_system(), _system(_SECOND), _user()], _SYSTEM, _SECOND, _USER
        ),
        "developer": template.mentions("developer")
        and probe.shows([_turn("developer", _SYSTEM), _user()], _SYSTEM, _USER),
        "late_system": _has_late_system(probe),
        "user_twice": probe.shows([_user(), _user(_LATER)], _USER, _LATER),
        "assistant_twice": probe.shows(
            [_user(), _assistant(), _assistant(_OTHER), _user(_LATER)],
            *(_USER, _ANSWER, _OTHER, _LATER),
        ),
        "assistant_first": probe.shows([_assistant(), _user()], _ANSWER, _USER),
        "empty_assistant": probe.shows([_user(), _assistant(""), _user(_LATER)], _USER, _LATER),
        **_tools(probe),
    }
    known |= _calls(probe, tools=bool(known["tools"]))
    known |= _reasoning(template, probe) | _efforts(template, probe)
    return Abilities(empty_tools=probe.empty_tools, **known)


class _Probe:
    """Renders conversations made of the words above."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.only_parts: frozenset[str] = frozenset()
        self.empty_tools = False
        self.empty_tools = self.text([_user()]) is None

    def text(
        self,
        turns: Sequence[Turn],
        tools: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str | None:
        """None where the template refuses. `tools`: one function."""
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
        """Whether the text has the words in this order."""
        text, at = self.text(turns, tools), 0
        for word in words:
            at = -1 if text is None else text.find(word, at)
            if at < 0:
                return False
        return True


def _turn(role: str, content: Any, **more: Any) -> Turn:
    return {"role": role, "content": content, **more}


def _as_parts(turn: Turn) -> Turn:
    if isinstance(turn["content"], str):
        return {**turn, "content": [{"type": "text", "text": turn["content"]}]}
    return turn


def _system(text: str = _SYSTEM) -> Turn:
    return _turn("system", text)


def _user(text: str = _USER) -> Turn:
    return _turn("user", text)


def _assistant(text: Any = _ANSWER, **more: Any) -> Turn:
    return _turn("assistant", text, **more)


def _call(arguments: Any, call_id: str = _SHORT_ID) -> Turn:
    function = {"name": _NAME, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _result(text: str = _RESULT, call_id: str = _SHORT_ID) -> Turn:
    return _turn("tool", text, tool_call_id=call_id, name=_NAME)


def _contents(probe: _Probe) -> dict[str, Any]:
    """In which form contents may come."""
    only: list[str] = []
    for role in ("user", "system"):
        turns = [_user()] if role == "user" else [_system(), _user()]
        words = [turn["content"] for turn in turns]
        if not probe.shows(turns, *words):
            probe.only_parts = frozenset((*only, role))
            if probe.shows(turns, *words):
                only.append(role)
            probe.only_parts = frozenset(only)
    texts = [{"type": "text", "text": word} for word in (_USER, _LATER)]
    listed = probe.text([_turn("user", texts)]) or ""
    shown = 0 <= listed.find(_USER) < listed.find(_LATER)
    return {
        "only_parts": probe.only_parts,
        "parts": shown and not _is_spelled_out(listed, "text"),
    }


def _is_spelled_out(text: str, key: str) -> bool:
    """Whether a template put an object with that key into its text, as Python or as JSON."""
    return f"'{key}'" in text or f'"{key}"' in text


def _has_late_system(probe: _Probe) -> bool:
    late = [_user(), _assistant(), _system(), _user(_LATER)]
    words = (_USER, _ANSWER, _SYSTEM, _LATER)
    text = probe.text(late) or ""
    # One that also stands in front would part the longer chat's text from the shorter one's.
    if not probe.shows(late, *words) or text.find(_SYSTEM) < text.find(_ANSWER):
        return False
    first = _system(_SECOND)
    return probe.shows([first, *late], _SECOND, *words) or not probe.shows([first, _user()], _USER)


def _tools(probe: _Probe) -> dict[str, Any]:
    turns = [_user()]
    by_itself = probe.shows(turns, _NAME, tools=_FUNCTION)
    if not by_itself:
        turns = [_system(), _user()]
    tools = by_itself or probe.shows(turns, _NAME, tools=_FUNCTION)
    return {
        "tools": tools,
        "tools_with_system": tools and not by_itself,
        "bare_tools": probe.shows(turns, _NAME, tools=_BARE_FUNCTION),
        "bare_parameters": probe.shows(
            turns, _NAME, tools={**_FUNCTION, "parameters": _BARE_PARAMETERS}
        ),
    }


def _calls(probe: _Probe, *, tools: bool) -> dict[str, Any]:
    function = _FUNCTION if tools else None
    words = (_USER, _VALUE, _RESULT)

    def spells(arguments: Any, listed: Mapping[str, Any] | None) -> bool:
        turns = [_user(), _assistant("", tool_calls=[_call(arguments)]), _result()]
        text = probe.text(turns, listed) or ""
        # An object as Python spells it, or JSON text within a JSON string.
        is_odd = f"{{'{_KEY}'" in text or f'\\"{_KEY}\\"' in text
        return not is_odd and probe.shows(turns, *words, tools=listed)

    forms: tuple[Any, ...] = ({_KEY: _VALUE}, f'{{"{_KEY}": "{_VALUE}"}}')
    form = next((form for form in forms if spells(form, function)), None)
    alone = next((each for each in forms if spells(each, None)), None)
    results = probe.shows([_user(), _assistant(), _result()], _USER, _ANSWER, _RESULT)
    if form is None and alone is None:
        return {"results": results}
    arguments = forms[0] if form is None else form
    second = {_KEY: _OTHER} if arguments is forms[0] else f'{{"{_KEY}": "{_OTHER}"}}'
    call = _assistant("", tool_calls=[_call(arguments)])
    two = _assistant("", tool_calls=[_call(arguments), _call(second, "efgh67890")])
    both = probe.text([_user(), two, _result(), _result(_RESULT_2, "efgh67890")], function) or ""
    long = [_user(), _assistant("", tool_calls=[_call(arguments, _LONG_ID)])]
    return {
        "calls": form is not None,
        "calls_alone": alone is not None,
        "results": results,
        "string_arguments": isinstance(arguments, str),
        "parallel_calls": all(word in both for word in (_VALUE, _OTHER, _RESULT, _RESULT_2)),
        "long_ids": probe.shows([*long, _result(call_id=_LONG_ID)], *words, tools=function),
        "user_after_result": probe.shows(
            [_user(), call, _result(), _user(_LATER)], *words, _LATER, tools=function
        ),
        "example_call": "" if tools else _example(probe, call),
    }


def _example(probe: _Probe, call: Turn) -> str:
    """An answer that makes the call; empty where the call is not spelled there."""
    answered = probe.text([_user(), _assistant()]) or ""
    called = probe.text([_user(), call]) or ""
    example = called[len(os.path.commonprefix([answered, called])) :]
    end = answered.rpartition(_ANSWER)[2].strip()
    if end:
        example = example.partition(end)[0]
    return example.strip() if _NAME in example and _VALUE in example else ""


def _reasoning(template: ChatTemplate, probe: _Probe) -> dict[str, Any]:
    fields = tuple(name for name in REASONING_FIELDS if template.mentions(name))
    thoughts = dict.fromkeys(fields, _THOUGHT)
    calls = [_call({_KEY: _VALUE})]
    with_text = [_user(), _assistant(tool_calls=calls, **thoughts), _result()]
    without = [_user(), _assistant("", tool_calls=calls, **thoughts), _result()]
    part = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _ANSWER}]
    return {
        "reasoning_fields": fields,
        "text_beside_reasoning": probe.text(with_text) is not None or probe.text(without) is None,
        "reasoning_part": template.mentions("thinking")
        and probe.shows([_user(), _assistant(part), _user(_LATER)], _THOUGHT, _ANSWER, _LATER)
        and not _is_spelled_out(probe.text([_user(), _assistant(part)]) or "", "thinking"),
    }


def _efforts(template: ChatTemplate, probe: _Probe) -> dict[str, Any]:
    efforts, off, on = {}, {}, {}
    plain = _with(probe, enable_thinking=True, thinking=True)
    # Where thinking has a variable of its own, the effort does not turn it off.
    has_switch = _with(probe, enable_thinking=False, thinking=False) != plain
    for name in EFFORT_VARIABLES:
        if not template.mentions(name):
            continue
        taken = [value for value in EFFORTS if _with(probe, **{name: value}) is not None]
        efforts[name] = tuple(taken)
        if has_switch:
            continue
        named = [v for v in OFF_EFFORTS if f"'{v}'" in template.text or f'"{v}"' in template.text]
        # One that puts any value into its text takes the least that models know.
        if _OTHER in (_with(probe, **{name: _OTHER}) or ""):
            named.append("low")
        least = next((v for v in named if _with(probe, **{name: v}) is not None), None)
        if least is not None:
            off[name] = least
            if _with(probe, **{name: least}) == plain and "high" in taken:
                on[name] = "high"
    return {"efforts": efforts, "off_efforts": off, "on_efforts": on}


def _with(probe: _Probe, **variables: Any) -> str | None:
    return probe.text([_user()], None, variables)
