"""Programs of templates, changed so that a message is spelled the same however many follow it.

A longer chat's prompt then begins with the shorter one's, whose keys and values are in the cache.
Each change is of a construct that templates of several families have, and of nothing else.
"""

import re
from collections.abc import Callable

EMPTY_REASONING = "spells_empty_reasoning"
"""The variable of changed programs: whether an answer without reasoning is spelled with the empty
markers that the prompt closes by itself where thinking is off."""

_LOOPS = re.compile(
    r"\{%[-+]?\s*for\s+(?P<name>[\w, ]+?)\s+in\s+(?P<items>.*?)\s*[-+]?%\}"
    r"|\{%[-+]?\s*(?P<end>endfor)\s*[-+]?%\}"
    r"|(?P<asked>loop\.index0 > (?>(?:\w+\.)?\w*last_(?:user|query)\w*(?:\.\w+)?)"
    r"|\b(?>(?:preserve|preserved)_thinking(?: is true)?))(?=\s*(?:\)|and\b|or\b|[-+]?%\}))"
)
"""Where loops begin and end, and where one asks whether it is behind the last user's message, or
whether all reasoning is kept, as a whole operand of a condition."""
_WHOLE_OPERAND = re.compile(r"(?:\(|\b(?:el)?if|\band|\bor|\bnot|(?<![=!<>])=)\s*\Z")
"""What is before one."""
_MESSAGES = re.compile(r"\w*messages\w*")
_TOOLS_AT_LAST_USER = re.compile(
    r"(\{%[-+]?\s*(?:el)?if [^%{}]*\btools\b[^%{}]*==\s*\w*user\w*)\[-1\]"
)
_CLOCK = re.compile(r"(strftime_now\(\s*)(['\"])(.*?)\2")
_TIME = re.compile(
    r"[\sT,]*%[-#]?[HIMSfpXTRrsZz](?:[\s:.]*%[-#]?[HIMSfpXTRrsZz])*(?:\s*(?:Z|UTC|GMT)(?!\w))?"
)
_OPEN_BEFORE = re.compile(r"(?:(?:\A|[\s,])[^\W\d]+|[(\[{<|])[\s,]*\Z")
_OPEN_BEHIND = re.compile(r"\s*[^\W\d]|\s*[)\]}>|]")
"""A word or a bracket that belongs to the time."""


def steady(program: str, is_harmless: Callable[[str, str], bool] | None = None) -> str:
    """The program with reasoning and tools where they stay, and with the day, not the time.
    `is_harmless`: whether the second program may stand for the first; a change that may not is
    left out."""
    for change in (_with_steady_answers, _with_tools_at_first_user, _with_the_day_only):
        changed = change(program)
        if changed != program and (is_harmless is None or is_harmless(program, changed)):
            program = changed
    return program


def _with_steady_answers(program: str) -> str:
    """Many programs show the reasoning of answers behind the last user's message only, and some
    show its markers there even where there is none: the next user's message then changes them.
    So do those that are told to keep all reasoning, once they are told.
    An answer without reasoning is taken as if it were before the last user's message, or, under
    `EMPTY_REASONING`, as if it were behind it. One that ends the chat, and what others say, stays
    as it is."""

    open_loops: list[str] = []
    """The message's name in each, or nothing where it is not of messages."""

    def is_operand(begin: int) -> bool:
        return _WHOLE_OPERAND.search(program, max(0, begin - 40), begin) is not None

    def change(match: re.Match[str]) -> str:
        if match["end"]:
            del open_loops[-1:]
        elif match["name"]:
            is_of_messages = _MESSAGES.fullmatch(match["items"]) and match["name"].isidentifier()
            open_loops.append(match["name"] if is_of_messages else "")
        elif open_loops and open_loops[-1] and is_operand(match.start()):
            return _asked_of_reasoning(match[0], open_loops[-1])
        return match[0]

    return _LOOPS.sub(change, program)


def _asked_of_reasoning(condition: str, message: str) -> str:
    fields = f"{message}.reasoning_content or {message}.reasoning or {message}.thinking"
    # Reasoning may also stand in the content, and is then left to the program.
    inside = f"'think>' in ({message}.content or '') | string"
    other = f"{message}.role != 'assistant'"
    return f"(({condition}) if loop.last or {other} or {fields} or {inside} else {EMPTY_REASONING})"


def _with_tools_at_first_user(program: str) -> str:
    """Programs that put the tools before the last user's message: each new one would move them."""
    return _TOOLS_AT_LAST_USER.sub(r"\1[0]", program)


def _with_the_day_only(program: str) -> str:
    """Programs that write the time of day at the begin of the prompt, which is then never the same
    twice. A form that says the time with words of its own is left alone."""

    def change(match: re.Match[str]) -> str:
        call, quote, form = match.groups()
        form = form.replace("%c", "%a %b %d %Y")
        for time in _TIME.finditer(form):
            before, behind = form[: time.start()], form[time.end() :]
            if _OPEN_BEFORE.search(before) or _OPEN_BEHIND.match(behind):
                return match[0]
        return f"{call}{quote}{_TIME.sub('', form).strip(' ,')}{quote}"

    return _CLOCK.sub(change, program)
