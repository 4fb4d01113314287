"""Finds what a chat template supports by rendering small conversations with it.

Templates differ in the roles that they know, in the order of messages that they accept, and in the
form of tool calls that they expect. A template does not support what it refuses, or silently leaves
out of its text.
"""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.prompt.template.chat_template import ChatTemplate, Turn
from node.prompt.template.probe import (
    ANSWER,
    FOUND,
    FUNCTION,
    KEY,
    LATER,
    LONG_ID,
    NAME,
    OTHER,
    RESULT,
    SECOND,
    SYSTEM,
    THOUGHT,
    USER,
    VALUE,
    Probe,
    assistant,
    call,
    result,
    system,
    text_parts,
    turn,
    user,
)

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""In ascending order."""
OFF_EFFORTS = ("no_think", "none", "minimal", "low")
"""Values of an effort variable that may stand for no thinking, best first."""
EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort")
KEEP_REASONING = {
    "preserve_thinking": True,
    "preserved_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
"""Variables under which templates show the reasoning of all responses, with the values that do."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "tool_plan")

_LISTED = (SECOND, LATER)
"""Texts of a list of parts, in probes."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The features that one template supports."""

    empty_tools: bool = False
    """Without tools, it needs an empty list instead of none."""
    only_parts: frozenset[str] = frozenset()
    """Roles whose content it accepts only as a list of parts."""
    parts: frozenset[str] = frozenset()
    """The roles, of `user`, `system` and `tool`, whose content may be a list of parts."""
    system: bool = False
    """A system message at the beginning, which is rendered there."""
    several_systems: bool = False
    """Several system messages at the beginning."""
    late_system: bool = False
    """A system message behind other messages, which is rendered there."""
    developer: bool = False
    user_twice: bool = False
    """Two user messages in a row."""
    assistant_twice: bool = False
    assistant_first: bool = False
    empty_assistant: bool = False
    """An assistant message without content."""
    tools: bool = False
    """It describes the tools to the model."""
    tools_with_system: bool = False
    """It describes tools only if there is a system message."""
    calls: bool = False
    """It renders calls and their results, in a request with tools."""
    calls_alone: bool = False
    """It renders calls and their results, in a request without tools."""
    results: bool = False
    """It renders results, at least behind calls that are plain text."""
    parallel_calls: bool = False
    """Several calls in one message."""
    text_with_calls: bool = False
    """It renders the calls of a message that has text, too; it may or may not render that text."""
    text_before_calls: bool = False
    """A message with text may precede one with calls."""
    string_arguments: bool = False
    """It expects the arguments of calls as JSON text, not as an object."""
    long_ids: bool = False
    """Ids of calls may be any text; otherwise nine letters and digits."""
    user_after_result: bool = False
    """A user message may follow a tool result without an assistant message between them."""
    text_beside_reasoning: bool = False
    """A message with calls may have both text and reasoning."""
    reasoning_part: bool = False
    """It accepts reasoning as a part of the content."""
    reasoning_fields: tuple[str, ...] = ()
    """Names of message fields in which it may look for reasoning."""
    keep_reasoning: Mapping[str, bool] = field(default_factory=dict)
    """The entries of `KEEP_REASONING` that it reads."""
    efforts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of `EFFORTS` that it accepts, by each variable that it reads."""
    off_efforts: Mapping[str, str] = field(default_factory=dict)
    """By variable: the value for no thinking or the least of it, if thinking has no variable of its
    own."""
    on_efforts: Mapping[str, str] = field(default_factory=dict)
    """By variable: the value that turns thinking on, if it is off by default."""
    example_call: str = ""
    """Its rendering of a call, if it renders calls but does not describe tools."""


def find_abilities(template: ChatTemplate) -> Abilities:
    """Renders about forty short conversations; takes some 10 ms."""
    probe = Probe(template)
    known: dict[str, Any] = {
        **_contents(probe),
        "system": probe.shows([system(), user()], SYSTEM, USER),
        "several_systems": probe.shows([system(), system(SECOND), user()], SYSTEM, SECOND, USER),
        "developer": template.mentions("developer")
        and probe.shows([turn("developer", SYSTEM), user()], SYSTEM, USER),
        "late_system": _has_late_system(probe),
        "user_twice": probe.shows([user(), user(LATER)], USER, LATER),
        "assistant_twice": probe.shows(
            [user(), assistant(), assistant(OTHER), user(LATER)],
            *(USER, ANSWER, OTHER, LATER),
        ),
        "assistant_first": probe.shows([assistant(), user()], ANSWER, USER),
        "empty_assistant": probe.shows([user(), assistant(""), user(LATER)], USER, LATER),
        **_tools(probe),
    }
    known |= _calls(probe, tools=bool(known["tools"]))
    known |= _in_longer_chats(probe, known)
    known |= _reasoning(template, probe) | _efforts(template, probe)
    return Abilities(empty_tools=probe.empty_tools, **known)


def _contents(probe: Probe) -> dict[str, Any]:
    """Finds the forms of content that the template accepts."""
    only: list[str] = []
    for role in ("user", "system"):
        turns = [user()] if role == "user" else [system(), user()]
        words = [turn["content"] for turn in turns]
        if not probe.shows(turns, *words):
            probe.only_parts = frozenset((*only, role))
            if probe.shows(turns, *words):
                only.append(role)
            probe.only_parts = frozenset(only)
    known: dict[str, Any] = {"only_parts": probe.only_parts}
    listed = text_parts(*_LISTED)
    conversations = {"user": [user(listed)], "system": [system(listed), user()]}
    known["parts"] = frozenset(
        role for role, turns in conversations.items() if _takes_parts(probe, turns)
    )
    return known


def _takes_parts(
    probe: Probe, turns: Sequence[Turn], tools: Mapping[str, Any] | None = None
) -> bool:
    """True if the text has all parts, which are those of `_LISTED`, as text."""
    text = probe.text(turns, tools) or ""
    return probe.shows(turns, *_LISTED, tools=tools) and not _is_spelled_out(text, "text")


def _is_spelled_out(text: str, key: str) -> bool:
    """True if the template put an object with that key into its text, as Python or as JSON."""
    return f"'{key}'" in text or f'"{key}"' in text


def _has_late_system(probe: Probe) -> bool:
    late = [user(), assistant(), system(), user(LATER)]
    words = (USER, ANSWER, SYSTEM, LATER)
    text = probe.text(late) or ""
    # A copy at the front would make the longer chat's text differ from the shorter one's.
    if not probe.shows(late, *words) or text.find(SYSTEM) < text.find(ANSWER):
        return False
    first = system(SECOND)
    return probe.shows([first, *late], SECOND, *words) or not probe.shows([first, user()], USER)


def _in_longer_chats(probe: Probe, known: Mapping[str, Any]) -> dict[str, Any]:
    """Finds what shows only in longer chats, mostly behind a tool result."""
    function = FUNCTION if known["tools"] else None
    answer = assistant()
    if known.get("calls") or known.get("calls_alone"):
        arguments: Any = {KEY: VALUE}
        if known["string_arguments"]:
            arguments = f'{{"{KEY}": "{VALUE}"}}'
        answer = assistant("", tool_calls=[call(arguments)])
    first = [user(), answer]
    parts = known["parts"]
    if _takes_parts(probe, [*first, result(text_parts(*_LISTED))], function):
        parts |= {"tool"}
    longer = (
        probe.text([system(), *first, result()], function),
        probe.text([system(), user(), assistant(), user(LATER)]),
    )
    return {"parts": parts, "system": known["system"] and all(map(_begins_with_system, longer))}


def _begins_with_system(text: str | None) -> bool:
    """True if the system text comes before the first user's, or if the template refuses the chat:
    some show it only right before a user message that is the last one."""
    return text is None or SYSTEM in text.partition(USER)[0]


def _tools(probe: Probe) -> dict[str, Any]:
    turns = [user()]
    by_itself = probe.shows(turns, NAME, tools=FUNCTION)
    if not by_itself:
        turns = [system(), user()]
    tools = by_itself or probe.shows(turns, NAME, tools=FUNCTION)
    return {"tools": tools, "tools_with_system": tools and not by_itself}


def _calls(probe: Probe, *, tools: bool) -> dict[str, Any]:
    function = FUNCTION if tools else None
    words = (USER, VALUE, RESULT)

    def spells(arguments: Any, listed: Mapping[str, Any] | None) -> bool:
        turns = [user(), assistant("", tool_calls=[call(arguments)]), result()]
        text = probe.text(turns, listed) or ""
        # An object as Python spells it, or JSON text within a JSON string.
        is_odd = f"{{'{KEY}'" in text or f'\\"{KEY}\\"' in text
        return not is_odd and probe.shows(turns, *words, tools=listed)

    forms: tuple[Any, ...] = ({KEY: VALUE}, f'{{"{KEY}": "{VALUE}"}}')
    form = next((form for form in forms if spells(form, function)), None)
    alone = next((each for each in forms if spells(each, None)), None)
    results = probe.shows([user(), assistant(), result()], USER, ANSWER, RESULT)
    if form is None and alone is None:
        return {"results": results}
    arguments = alone if form is None else form
    second = {KEY: OTHER} if arguments is forms[0] else f'{{"{KEY}": "{OTHER}"}}'
    calling = assistant("", tool_calls=[call(arguments)])
    two = assistant("", tool_calls=[call(arguments), call(second, "efgh67890")])
    both = probe.text([user(), two, result(), result(FOUND, "efgh67890")], function) or ""
    long = [user(), assistant("", tool_calls=[call(arguments, LONG_ID)])]
    return {
        "calls": form is not None,
        "calls_alone": alone is not None,
        "results": results,
        "string_arguments": isinstance(arguments, str),
        "parallel_calls": all(word in both for word in (VALUE, OTHER, RESULT, FOUND)),
        **_texts_of_calls(probe, calling, function),
        "long_ids": probe.shows([*long, result(call_id=LONG_ID)], *words, tools=function),
        "user_after_result": probe.shows(
            [user(), calling, result(), user(LATER)], *words, LATER, tools=function
        ),
        "example_call": "" if tools else _example(probe, calling),
    }


def _texts_of_calls(
    probe: Probe, calling: Turn, function: Mapping[str, Any] | None
) -> dict[str, bool]:
    saying = {**calling, "content": ANSWER}
    return {
        "text_with_calls": probe.shows(
            [user(), saying, result()], USER, VALUE, RESULT, tools=function
        ),
        "text_before_calls": probe.shows(
            [user(), assistant(), calling, result()], USER, ANSWER, VALUE, RESULT, tools=function
        ),
    }


def _example(probe: Probe, calling: Turn) -> str:
    """Returns the text of a response that makes the call; empty if the call is not in it."""
    answered = probe.text([user(), assistant()]) or ""
    called = probe.text([user(), calling]) or ""
    example = called[len(os.path.commonprefix([answered, called])) :]
    end = answered.rpartition(ANSWER)[2].strip()
    if end:
        example = example.partition(end)[0]
    return example.strip() if NAME in example and VALUE in example else ""


def _reasoning(template: ChatTemplate, probe: Probe) -> dict[str, Any]:
    fields = tuple(name for name in REASONING_FIELDS if template.mentions(name))
    thoughts = dict.fromkeys(fields, THOUGHT)
    calls = [call({KEY: VALUE})]
    with_text = [user(), assistant(tool_calls=calls, **thoughts), result()]
    without = [user(), assistant("", tool_calls=calls, **thoughts), result()]
    part = [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]
    return {
        "reasoning_fields": fields,
        "keep_reasoning": {
            name: value for name, value in KEEP_REASONING.items() if template.mentions(name)
        },
        "text_beside_reasoning": probe.text(with_text) is not None or probe.text(without) is None,
        "reasoning_part": template.mentions("thinking")
        and probe.shows([user(), assistant(part), user(LATER)], THOUGHT, ANSWER, LATER)
        and not _is_spelled_out(probe.text([user(), assistant(part)]) or "", "thinking"),
    }


def _efforts(template: ChatTemplate, probe: Probe) -> dict[str, Any]:
    efforts, off, on = {}, {}, {}
    plain = _with(probe, enable_thinking=True, thinking=True)
    # If thinking has a variable of its own, the effort does not turn it off.
    has_switch = _with(probe, enable_thinking=False, thinking=False) != plain
    for name in EFFORT_VARIABLES:
        if not template.mentions(name):
            continue
        taken = [value for value in EFFORTS if _with(probe, **{name: value}) is not None]
        efforts[name] = tuple(taken)
        if has_switch:
            continue
        named = [v for v in OFF_EFFORTS if f"'{v}'" in template.text or f'"{v}"' in template.text]
        # A template that puts any value into its text gets the lowest effort that models know.
        if OTHER in (_with(probe, **{name: OTHER}) or ""):
            named.append("low")
        least = next((v for v in named if _with(probe, **{name: v}) is not None), None)
        if least is not None:
            off[name] = least
            if _with(probe, **{name: least}) == plain and "high" in taken:
                on[name] = "high"
    return {"efforts": efforts, "off_efforts": off, "on_efforts": on}


def _with(probe: Probe, **variables: Any) -> str | None:
    return probe.text([user()], None, variables)
